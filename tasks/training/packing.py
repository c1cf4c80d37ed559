"""Packed sequences: the trajectories of a micro-batch one after the other in a single row, so that nothing is computed for padding.

Position ids begin anew with each trajectory; from them flash-attention takes where one ends (its varlen kernels), and transformers makes a
block-diagonal mask for any other attention. No trajectory sees another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PACKING = ("flash_attention_2", "flash_attention_3")
"""Values of `policy.attn_implementation` with which trajectories are packed; a block-diagonal mask would cost more than padding does."""


def packs(attention: str | None) -> bool:
    """Whether trajectories are packed under this `policy.attn_implementation`."""
    return attention in PACKING


@dataclass(frozen=True, slots=True)
class Packed:
    """The N tokens of B padded rows of L places.

    Attributes:
        ids: Token ids, shape (1, N).
        positions: Of each token in its trajectory, from 0, shape (1, N).
        labels: Token ids that are to be predicted, -100 elsewhere, shape (1, N).
        places: Where each token stood in the B x L places, shape (N,).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor


def pack(ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> Packed:
    """Leaves the padding out.

    Args:
        ids: Token ids of B rows, shape (B, L).
        mask: 1 on tokens, 0 on padding, of which none lies between two tokens; shape (B, L).
        labels: Token ids that are to be predicted, -100 elsewhere, and on the first token of each trajectory, before which another's end
            stands now; shape (B, L).
    """
    places = mask.flatten().nonzero().squeeze(1)
    positions = mask.cumsum(dim=1) - 1
    ids, positions, labels = (tensor.flatten()[places].unsqueeze(0) for tensor in (ids, positions, labels))
    return Packed(ids, positions, labels, places)


def unpack(values: torch.Tensor, places: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Puts values, shape (1, M), into places, shape (M,), counted row by row, of a tensor of this shape; 0 elsewhere."""
    return values.new_zeros(shape.numel()).index_copy(0, places, values[0]).view(shape)


def packed_scores(model: Any, ids: torch.Tensor, mask: torch.Tensor, scored: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities and, where the model gives them, entropies of the last places of each row; both of shape (B, scored).

    Args:
        model: With TRL's fused head.
        ids: See `pack`.
        mask: See `pack`; at least one token.
        scored: In how many places at the end of a row log-probabilities are wanted; each trajectory begins before them.
    """
    labels = ids.clone()
    labels[:, : ids.size(1) - scored] = -100
    packed = pack(ids, mask, labels)
    found = model(input_ids=packed.ids, position_ids=packed.positions, labels=packed.labels, fused_lm_head=True)
    logps, entropies = (
        None if values is None else unpack(values, packed.places[1:], ids.shape)[:, -scored:] for values in (found.log_probs, found.entropy)
    )
    assert logps is not None
    return logps, entropies


def packed_values(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A critic's value after each token, 0 on padding; shape (B, L).

    Args:
        model: A `ValueModel`.
        ids: See `pack`.
        mask: See `pack`; at least one token.
    """
    packed = pack(ids, mask, ids)
    return unpack(model(packed.ids, None, packed.positions), packed.places, mask.shape)
