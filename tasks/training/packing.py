"""Packed sequences: all trajectories of a micro-batch in a single row, without padding.

Position ids restart at each trajectory. flash-attention derives the boundaries from them (its
varlen kernels). For any other attention, transformers derives a block-diagonal mask. No trajectory
attends to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PACKING = ("flash_attention_2", "flash_attention_3")
"""Values of `policy.attn_implementation` that enable packing.

With other values, a block-diagonal mask would cost more than padding.
"""


def packs(attention: str | None) -> bool:
    """Whether trajectories are packed under this `policy.attn_implementation`."""
    return attention in PACKING


@dataclass(frozen=True, slots=True)
class Packed:
    """The N tokens of B padded rows of length L.

    Attributes:
        ids: Token ids, shape (1, N).
        positions: Position of each token in its trajectory, from 0, shape (1, N).
        labels: Target token ids, -100 elsewhere, shape (1, N).
        places: Index of each token in the flattened B x L rows, shape (N,).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor


def pack(ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> Packed:
    """Remove the padding.

    Args:
        ids: Token ids of B rows, shape (B, L).
        mask: 1 on tokens, 0 on padding. There is no padding between two tokens. Shape (B, L).
        labels: Target token ids, -100 elsewhere. The first token of each trajectory must also be
            -100, because after packing it follows another trajectory. Shape (B, L).
    """
    places = mask.flatten().nonzero().squeeze(1)
    positions = mask.cumsum(dim=1) - 1
    ids, positions, labels = (
        tensor.flatten()[places].unsqueeze(0) for tensor in (ids, positions, labels)
    )
    return Packed(ids, positions, labels, places)


def unpack(values: torch.Tensor, places: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Scatter values of shape (1, M) to flat indices `places` of shape (M,) in a tensor of `shape`.

    All other elements are 0.
    """
    return values.new_zeros(shape.numel()).index_copy(0, places, values[0]).view(shape)


def packed_scores(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, scored: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute log-probabilities and entropies of the last `scored` tokens of each row.

    Args:
        model: A model with TRL's fused head.
        ids: Token ids, as in `pack`.
        mask: Token mask, as in `pack`, with at least one token.
        scored: Number of scored positions at the end of each row. Each trajectory starts before
            them.

    Returns:
        Log-probabilities and, if the model computes them, entropies; each of shape (B, scored).
    """
    labels = ids.clone()
    labels[:, : ids.size(1) - scored] = -100
    packed = pack(ids, mask, labels)
    found = model(
        input_ids=packed.ids,
        position_ids=packed.positions,
        labels=packed.labels,
        fused_lm_head=True,
    )
    logps, entropies = (
        None if values is None else unpack(values, packed.places[1:], ids.shape)[:, -scored:]
        for values in (found.log_probs, found.entropy)
    )
    assert logps is not None
    return logps, entropies


def packed_values(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute a critic's value after each token, 0 on padding; shape (B, L).

    Args:
        model: A `ValueModel`.
        ids: Token ids, as in `pack`.
        mask: Token mask, as in `pack`, with at least one token.
    """
    packed = pack(ids, mask, ids)
    return unpack(model(packed.ids, None, packed.positions), packed.places, mask.shape)
