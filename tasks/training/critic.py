"""PPO's critic: the policy's layers with a scalar value head and a separate optimiser."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from configs.experiment import Policy
from configs.launch import Sharding
from configs.policy_gradient import Critic as CriticSettings
from tasks.inference.fused_layers import fuse_layers
from tasks.training.context_parallel import ContextParallel
from tasks.training.model_loading import check_weights, load_model, shard_loaded
from tasks.training.optimiser_state import (
    load_optimiser,
    load_tensors,
    save_optimiser,
    save_tensors,
)
from tasks.training.packing import packed_values, packs, share_prefixes
from tasks.training.recomputation import recompute_activations
from tasks.training.row_tensors import Tensors
from tasks.training.sharding import gather_tensor

WEIGHTS, OPTIMISER = "critic", "critic-optimiser"


class ValueModel(nn.Module):
    """The layers of a language model with a zero-initialised linear head.

    All initial values are therefore 0.
    """

    def __init__(self, backbone: Any) -> None:
        """`backbone` contains the pretrained layers of a language model."""
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(self.backbone.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, **inputs: Any) -> torch.Tensor:
        """Return the value of the state after each token, shape (B, tokens).

        Args:
            inputs: Arguments of the layers: input_ids and attention_mask of shape (B, tokens), or
                those of packed rows.
        """
        hidden = self.backbone(**inputs, use_cache=False).last_hidden_state
        # `sum` drops the size-1 output dimension without a view, which FSDP2 warns about.
        values: torch.Tensor = self.head(hidden.to(self.head.weight.dtype)).sum(-1)
        return values


class Critic:
    """The value function during training, sharded like the policy or replicated on every rank."""

    def __init__(
        self,
        policy: str,
        settings: CriticSettings,
        device: torch.device,
        compute: torch.dtype,
        layers: Policy,
        sharding: Sharding = "none",
    ) -> None:
        """Load the policy's layers.

        Args:
            policy: Hugging Face name or folder of the policy that training starts from.
            settings: Learning rate and clipping.
            compute: Compute dtype of the layers. The weights are float32.
            layers: The policy's settings: attention implementation and gradient checkpointing.
            sharding: How to shard the critic across ranks.
        """
        self.settings = settings
        self.device = device
        self._compute = compute
        self._sharded = sharding != "none"
        backbone = load_model(
            policy,
            sharded=self._sharded,
            dtype=torch.float32,
            attention=layers.attn_implementation,
            head=False,
        )
        share_prefixes(fuse_layers(backbone, compute), layers)
        recompute_activations(backbone, layers.gradient_checkpointing)
        # Gradient checkpointing requires training mode.
        self.model = ValueModel(backbone).train()
        if self._sharded:
            shard_loaded(self.model, compute, sharding)
        self.model.to(device)
        check_weights(backbone, policy)
        # torch's default on a GPU would hold another copy of the weights during a step.
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        self._loss = torch.zeros((), device=device)

    def values(self, tensors: Tensors, ranks: ContextParallel | None = None) -> torch.Tensor:
        """Return the value V of the state before each completion token. Shape (B, T + 1).

        The last column is the value after all tokens. The other `ranks` compute packed rows too.
        They must have the same tensors.
        """
        ids = tensors["input_ids"].to(self.device)
        mask = tensors["attention_mask"].to(self.device)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self._compute == torch.bfloat16
        ):
            every: torch.Tensor = (
                packed_values(self.model, ids, mask, ranks)
                if packs(self.model.backbone)
                else self.model(input_ids=ids, attention_mask=mask)
            )
        return every[:, -tensors["completion_mask"].size(1) - 1 :].float()

    def add_gradient(self, tensors: Tensors, ranks: ContextParallel | None = None) -> None:
        """Add the gradient of a micro-batch's share of the loss (arXiv 2005.12729, section 3).

        The loss is 1 / (2 N) sum of max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) over the
        positions in `value_mask`. N is their number in the whole mini-batch on all ranks.

        Args:
            tensors: The tokens; old_values, returns and value_mask of shape (B, T + 1); and
                value_count = N.
            ranks: As in `values`.
        """
        values, old, returns = (
            self.values(tensors, ranks),
            tensors["old_values"],
            tensors["returns"],
        )
        near = old + (values - old).clamp(-self.settings.value_clip, self.settings.value_clip)
        squares = (
            torch.maximum((values - returns) ** 2, (near - returns) ** 2) * tensors["value_mask"]
        )
        loss = 0.5 * squares.sum() / tensors["value_count"].clamp(min=1)
        # FSDP averages gradients over the ranks, but the formula needs their sum.
        (loss * torch.distributed.get_world_size() if self._sharded else loss).backward()  # type: ignore[no-untyped-call]
        self._loss += loss.detach() / (ranks.ranks if ranks else 1)

    def update(self, lr_scale: float) -> float:
        """Update the critic with the accumulated gradients and return the loss of the mini-batch.

        If the gradients are not finite, nothing changes, and the loss is nan.

        Args:
            lr_scale: Current learning rate as a fraction of the peak.
        """
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if torch.distributed.is_initialized():
            for parameter in parameters if not self._sharded else ():
                torch.distributed.all_reduce(parameter.grad)
            torch.distributed.all_reduce(self._loss)
        limit = self.settings.max_gradient_norm
        norm = gather_tensor(torch.nn.utils.clip_grad_norm_(parameters, limit))
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * lr_scale
        finite = bool(norm.isfinite())
        if finite:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        loss = float(self._loss) if finite else math.nan  # reported as a collapse
        self._loss.zero_()
        return loss

    def save(self, folder: Path) -> None:
        """Write weights and optimiser state next to the policy's. Every rank must call it."""
        save_tensors(folder / WEIGHTS, get_model_state_dict(self.model))
        save_optimiser(folder / OPTIMISER, self.model, self.optimiser)

    def load(self, folder: Path) -> None:
        """Load the output of `save`, on any number of ranks.

        Raises:
            CheckpointError: The checkpoint has no critic, or a file of it cannot be read.
        """
        load_optimiser(folder / OPTIMISER, self.model, self.optimiser)
        state = get_model_state_dict(self.model)
        load_tensors(folder / WEIGHTS, state)
        set_model_state_dict(self.model, state)
