"""Packed sequences: the trajectories of a micro-batch in a single row, each common prefix once.

The rows of a micro-batch are sorted by their tokens. Each row adds only the tokens that differ from
the row before it and attends to the prefix that they share. The members of a group have the same
prompt, and often the same first turns. No row attends to another row's own tokens.

flash-attention cannot read a shared prefix. It gets every row in full and derives their boundaries
from the position ids, which restart at each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from configs.experiment import Policy

if TYPE_CHECKING:
    from tasks.training.context_parallel import ContextParallel

FLASH = ("flash_attention_2", "flash_attention_3")
SHARED = "shared_prefix"
"""Name of our attention in transformers."""
GROUPED: dict[str, Any] = (
    {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
)
"""Lets several query heads read one key head. torch 2.11 does so without being asked."""
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments by which transformers' layers ask for other than plain attention."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens that a row adds to the packed row, and those that it attends to.

    Attributes:
        begin: Place of its first own token.
        end: Place after its last own token.
        context: Places of all tokens of the row, shape (length of the row,). None if the row shares
            no prefix, so that these are its own.
    """

    begin: int
    end: int
    context: torch.Tensor | None


@dataclass(frozen=True)
class Segments:
    """The segments of a packed row. The kernel for GPUs reads the properties.

    Attributes:
        parts: One for each row that adds tokens.
        device: Device of the tensors.
        shared_by: The ranks that compute the packed row together. None: this rank alone.
    """

    parts: tuple[Segment, ...]
    device: torch.device
    shared_by: ContextParallel | None = None

    @cached_property
    def context(self) -> torch.Tensor | None:
        """Places that the segments attend to, one after the other, or None if no prefix is shared."""
        if all(part.context is None for part in self.parts):
            return None
        return torch.cat(
            [
                torch.arange(part.begin, part.end, device=self.device)
                if part.context is None
                else part.context
                for part in self.parts
            ]
        )

    @cached_property
    def own_lengths(self) -> list[int]:
        """Own tokens of each segment."""
        return [part.end - part.begin for part in self.parts]

    @cached_property
    def row_lengths(self) -> list[int]:
        """Tokens that each segment attends to."""
        return [
            own if part.context is None else len(part.context)
            for own, part in zip(self.own_lengths, self.parts, strict=True)
        ]

    @cached_property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of `own_lengths` and of `row_lengths`, from 0, each an int32 of shape (S + 1,)."""
        own, row = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self.device)
            for lengths in (self.own_lengths, self.row_lengths)
        )
        return own, row


@dataclass(frozen=True, slots=True)
class Packed:
    """B padded rows of length L as one row of N tokens.

    Attributes:
        ids: Token ids, shape (1, N).
        positions: Position of each token in its row, from 0, shape (1, N).
        places: Place of each token of the padded rows in the packed row, 0 on padding. Shape
            (B, L).
        segments: What each row adds and attends to.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    segments: Segments

    def inputs(self, model: Any, ranks: ContextParallel | None = None) -> dict[str, Any]:
        """Return the arguments of the forward pass of a model that packs.

        With `ranks` they are those of this rank's part of the row.
        """
        inputs, segments = {"input_ids": self.ids, "position_ids": self.positions}, self.segments
        if ranks is not None:
            inputs = {name: ranks.part(row) for name, row in inputs.items()}
            segments = replace(segments, shared_by=ranks)
        return inputs | {"segments": segments} if shares_prefixes(model) else inputs

    def targets(
        self, ids: torch.Tensor, scored: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return further arguments, which score some tokens and compute no other logits.

        Args:
            ids: Token ids, as in `pack`.
            scored: True on the tokens to score, shape (B, L). The first token of a row cannot be
                scored.

        Returns:
            The arguments, for a model prepared by `score_places`. And for each scored token the
            index of its score, shape (number of scored tokens,).
        """
        row, column = scored.nonzero(as_tuple=True)
        places, indices = torch.unique(self.places[row, column - 1], return_inverse=True)
        labels = ids.new_full((max(1, len(places)),), -100)
        labels[indices] = ids[row, column]
        score_at = places if len(places) else places.new_zeros(1)
        return {"shift_labels": labels.unsqueeze(0), "score_at": score_at}, indices


def packs(model: Any) -> bool:
    """Whether a model reads packed rows."""
    return shares_prefixes(model) or _attention(model) in FLASH


def shares_prefixes(model: Any) -> bool:
    """Whether the rows that a model reads may share prefixes."""
    return _attention(model) == SHARED


def share_prefixes(model: Any, policy: Policy) -> Any:
    """Let a model read packed rows with shared prefixes, if the recipe and its layers allow it.

    A float32 policy keeps the attention of transformers, unless the recipe names ours. So do models
    whose layers attend to a window, add sinks or cap their scores, those that are not made of
    attention layers alone, and those with a loss that balances experts over all tokens. Returns the
    model.

    Raises:
        ValueError: The recipe names our attention, and the layers do not allow it.
    """
    named = policy.attn_implementation == SHARED
    if not named and (policy.attn_implementation is not None or policy.dtype == "float32"):
        return model
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ("full_attention",))
    window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    others = ("attn_logit_softcapping", "attention_chunk_size", "output_router_logits")
    plain = kinds == {"full_attention"} and not any(getattr(text, name, None) for name in others)
    balanced = balance_coefficient(model) > 0
    if plain and not window and not balanced and model._supports_attention_backend:
        model.set_attn_implementation(SHARED)
    elif named:
        raise ValueError(
            f"policy.attn_implementation is {SHARED}, which {text.model_type} does not support; "
            "leave it out"
        )
    return model


def balance_coefficient(model: Any) -> float:
    """Return the weight of the loss that balances a model's experts, 0 for a model without any."""
    text = model.config.get_text_config()
    has_experts = hasattr(text, "output_router_logits")
    return float(getattr(text, "router_aux_loss_coef", 0.0)) if has_experts else 0.0


def shared_lengths(
    rows: Sequence[Sequence[int]], most: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Sort rows of token ids and find what each shares with the one before.

    The last token that two rows share is counted as their own in both. Its successors differ, and a
    token of the packed row has one successor.

    Args:
        rows: The rows.
        most: Most leading tokens that each row may share. None: any number.

    Returns:
        Indices in order, and for each of them the number of leading tokens that it shares. The
        first shares none.
    """
    order = sorted(range(len(rows)), key=lambda i: list(rows[i]))
    shared = [0] * min(1, len(rows))
    limits = [len(row) for row in rows] if most is None else most
    for before, after in pairwise(order):
        pairs = zip(rows[before], rows[after], strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if common is None:  # one of them begins with the other
            common = min(len(rows[before]), len(rows[after]))
        shared.append(max(0, min(common - 1, limits[after])))
    return order, shared


def pack(
    ids: torch.Tensor, mask: torch.Tensor, *, share: bool, repeated: torch.Tensor | None = None
) -> Packed:
    """Remove the padding and, with `share`, the repeats of common prefixes.

    Args:
        ids: Token ids of B rows, shape (B, L).
        mask: 1 on tokens, 0 on padding. There is no padding between two tokens. Shape (B, L).
        share: Whether rows share prefixes.
        repeated: True on tokens that are scored once for each row that has them, even in a common
            prefix. Shape (B, L). None: no token is.
    """
    kept, tokens = mask.bool().tolist(), ids.tolist()
    firsts = [row.index(True) if any(row) else 0 for row in kept]
    rows = [row[first : first + sum(k)] for row, first, k in zip(tokens, firsts, kept, strict=True)]
    most = None
    if repeated is not None:  # the token before the first of them predicts it
        found = [row.index(True) - 1 if any(row) else len(row) for row in repeated.tolist()]
        most = [max(0, place - first) for place, first in zip(found, firsts, strict=True)]
    order, shared = (
        shared_lengths(rows, most) if share else (list(range(len(rows))), [0] * len(rows))
    )
    places = torch.zeros(ids.shape, dtype=torch.long)
    packed, positions, segments = list[int](), list[int](), list[Segment]()
    context = torch.zeros(0, dtype=torch.long)
    for i, common in zip(order, shared, strict=True):
        begin, length = len(packed), len(rows[i])
        packed += rows[i][common:]
        positions += range(common, length)
        context = torch.cat([context[:common], torch.arange(begin, len(packed))])
        places[i, firsts[i] : firsts[i] + length] = context
        if len(packed) > begin:
            segments.append(Segment(begin, len(packed), context.to(ids.device) if common else None))
    return Packed(
        torch.from_numpy(np.array([packed])).to(ids),
        torch.from_numpy(np.array([positions])).to(ids),
        places.to(ids.device),
        Segments(tuple(segments), ids.device),
    )


def packed_scores(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    scored: torch.Tensor,
    ranks: ContextParallel | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute log-probabilities and entropies of some tokens. All others get 0.

    The logits of the others are not computed.

    Args:
        model: A model with TRL's fused head, prepared by `score_places`.
        ids: Token ids, as in `pack`.
        mask: Token mask, as in `pack`, with at least one token.
        scored: True on the tokens to score, shape (B, L). The first token of a row cannot be
            scored.
        ranks: The ranks that compute the row together, with the same arguments.

    Returns:
        Log-probabilities and, if the model computes them, entropies; each of shape (B, L).
    """
    packed = pack(ids, mask, share=shares_prefixes(model))
    targets, indices = packed.targets(ids, scored)
    inputs, own = packed.inputs(model, ranks), None
    if ranks is not None:
        targets, own = ranks.own_targets(targets, packed.ids.size(1))
    found = model(**inputs, **targets, fused_lm_head=True)

    def scattered(values: torch.Tensor | None) -> torch.Tensor | None:
        if values is None:
            return None
        row = values[0]
        if ranks is not None and own is not None:
            row = ranks.whole(values.new_zeros(own.shape).masked_scatter(own, row))
        return values.new_zeros(ids.shape).masked_scatter(scored, row[indices])

    logps, entropies = scattered(found.log_probs), scattered(found.entropy)
    assert logps is not None
    # Without a scored token the result stays connected to the weights, for DDP.
    return logps if len(indices) else logps + found.log_probs.sum(), entropies


def score_places(model: Any) -> None:
    """Let a model's layers return the hidden states of some places only (`score_at`)."""

    def select(_: Any, __: Any, named: dict[str, Any], output: Any) -> Any:
        if (places := named.get("score_at")) is not None:
            output.last_hidden_state = output.last_hidden_state[:, places]
        return output

    model.base_model.register_forward_hook(select, with_kwargs=True)


def packed_values(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, ranks: ContextParallel | None = None
) -> torch.Tensor:
    """Compute a critic's value after each token, 0 on padding; shape (B, L).

    Args:
        model: A `ValueModel`.
        ids: Token ids, as in `pack`.
        mask: Token mask, as in `pack`, with at least one token.
        ranks: As in `packed_scores`.
    """
    packed = pack(ids, mask, share=shares_prefixes(model.backbone))
    values: torch.Tensor = model(**packed.inputs(model.backbone, ranks))[0]
    if ranks is not None:
        own = ranks.own_tokens(packed.ids.size(1))
        values = ranks.whole(pad(values, (own.start, len(own) * ranks.ranks - own.stop)))
    return values[packed.places] * mask


def shared_prefix_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    segments: Segments | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each segment to its row, for transformers' `AttentionInterface`.

    Args:
        module: The attention layer.
        query: Shape (1, heads, N, width). N is the row's length, or that of this rank's part.
        key: Shape (1, key heads, N, width).
        value: Shape (1, key heads, N, width).
        attention_mask: Must be None.
        dropout: Probability of dropping an attention weight.
        scaling: Factor of the scores.
        segments: Segments of the packed row. None for a single row.
        named: Further arguments of the layer.

    Raises:
        ValueError: There are several rows or a mask, or the layer's attention is not plain.
    """
    if len(query) > 1 or attention_mask is not None:
        raise ValueError(f"attn_implementation {SHARED} reads packed rows only")
    if given := [name for name in UNSUPPORTED if named.get(name) is not None]:
        raise ValueError(
            f"attn_implementation {SHARED} does not support {', '.join(given)} of this model; set "
            "policy.attn_implementation to sdpa"
        )
    dtype = value.dtype
    query, key = query.to(dtype), key.to(dtype)  # autocast does not see the attention below
    segments = segments or Segments((Segment(0, query.size(2), None),), query.device)
    if (ranks := segments.shared_by) is None:
        return _attended(query, key, value, segments, scaling, dropout), None
    length = segments.parts[-1].end
    query, key, value = (ranks.to_heads(each, length) for each in (query, key, value))
    return ranks.to_tokens(_attended(query, key, value, segments, scaling, dropout)), None


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    """Attend to whole rows. Returns shape (1, N, heads, width).

    The arguments are those of `shared_prefix_attention`.
    """
    if dropout == 0.0 and _reads_flash(query):
        return _flash(query, key, value, segments, scaling).unsqueeze(0)
    own = zip(
        *(torch.split(each, segments.own_lengths, dim=2) for each in (query, key, value)),
        strict=True,
    )
    parts = []
    for part, (queries, keys, values) in zip(segments.parts, own, strict=True):
        bias, length = None, part.end - part.begin
        if part.context is not None:
            keys, values = (tensor.index_select(2, part.context) for tensor in (key, value))
            if len(part.context) < 2 * length:
                # A causal kernel skips half of the square, and no kernel skips a part of a bias.
                queries = query.index_select(2, part.context)
            else:
                bias = causal_lower_right(length, len(part.context))
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=bias is None,
            scale=scaling,
            enable_gqa=True,
        )
        parts.append(attended[:, :, -length:])
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


def _reads_flash(query: torch.Tensor) -> bool:
    """Return whether torch's flash-attention takes the queries."""
    width = query.size(-1)
    return (
        query.is_cuda
        and query.dtype != torch.float32
        and width % 8 == 0
        and width <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
) -> torch.Tensor:
    """Attend to all segments in one kernel. Returns shape (N, heads, width).

    The arguments are those of `shared_prefix_attention`. The last query of a segment attends to its
    last key.
    """
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))
    if segments.context is not None:
        keys, values = (each.index_select(0, segments.context) for each in (keys, values))
    found = varlen_attn(
        queries,
        keys,
        values,
        *segments.ends,
        max(segments.own_lengths),
        max(segments.row_lengths),
        scale=scaling,
        window_size=(-1, 0),  # causal
        **GROUPED,
    )
    assert isinstance(found, torch.Tensor)
    return found


def _attention(model: Any) -> str:
    """Return the name of a model's attention, also behind a wrapper such as DDP's."""
    name: str = getattr(model, "module", model).config._attn_implementation
    return name


AttentionInterface.register(SHARED, shared_prefix_attention)
