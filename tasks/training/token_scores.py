"""Log-probabilities and entropies of the completions of a micro-batch, under one model."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from tasks.training.context_parallel import ContextParallel
from tasks.training.packing import packed_scores, packs
from tasks.training.row_tensors import Tensors


def token_scores(
    model: Any,
    tensors: Tensors,
    accelerator: Accelerator,
    ranks: ContextParallel | None,
    *,
    balances: bool = False,
) -> tuple[torch.Tensor, Any, Any]:
    """Score the completions of a micro-batch at the temperature of the rollouts.

    Packed rows are scored at the policy's tokens only.

    Args:
        model: A model with TRL's fused head, prepared by `score_places`.
        tensors: B rows with at most T completion tokens (see `pad_trajectories`).
        accelerator: Device and compute dtype.
        ranks: The ranks that compute packed rows together, with the same tensors.
        balances: Whether to compute the loss that balances a model's experts.

    Returns:
        Log-probabilities and entropies, each of shape (B, T), and the balancing loss. A reference
        has no entropies.
    """
    ids = tensors["input_ids"].to(accelerator.device)
    mask = tensors["attention_mask"].to(accelerator.device)
    completions = slice(-tensors["completion_mask"].size(1), None)
    with accelerator.autocast():
        if packs(model) and not balances:
            own = torch.zeros_like(mask, dtype=torch.bool)
            own[:, completions] = (tensors["tool_mask"] * tensors["completion_mask"]).bool()
            logps, entropies = packed_scores(model, ids, mask, own, ranks)
            balance = None
        else:
            labels = ids.masked_fill(mask == 0, -100)
            labels[:, : completions.start] = -100
            more = {"output_router_logits": True} if balances else {}
            found = model(
                input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **more
            )
            logps, entropies = found.log_probs, found.entropy
            balance = found.aux_loss if balances else None
    return (
        logps[:, completions],
        None if entropies is None else entropies[:, completions],
        balance,
    )


@torch.no_grad()
def log_probabilities(
    model: Any, tensors: Tensors, accelerator: Accelerator, ranks: ContextParallel | None = None
) -> torch.Tensor:
    """Return the log-probabilities of the completions, shape (B, T), on the CPU.

    The arguments are those of `token_scores`.
    """
    logps, _, _ = token_scores(model, tensors, accelerator, ranks)
    return torch.as_tensor(logps.float().cpu())
