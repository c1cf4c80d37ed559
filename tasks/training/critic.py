"""PPO's critic: the policy's layers with a head of one number, trained beside the policy by an optimiser of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModel

from tasks.training.algorithms.policy_gradient import Critic as CriticSettings
from tasks.training.micro_batches import Tensors

FILE = "critic.pt"


class ValueModel(nn.Module):
    """The layers of a language model and a zero-initialised linear head, so that every value is 0 at first."""

    def __init__(self, policy: str, gradient_checkpointing: bool) -> None:
        """`policy` is a Hugging Face name or folder; its weights are where the layers begin."""
        super().__init__()
        self.backbone = AutoModel.from_pretrained(policy, dtype=torch.float32)
        if gradient_checkpointing:
            self.backbone.gradient_checkpointing_enable()
        self.head = nn.Linear(self.backbone.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The value of the state after each token. Both arguments and the result have shape (B, tokens)."""
        hidden = self.backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        values: torch.Tensor = self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)
        return values


class Critic:
    """The value function in training. Every process holds all of it; gradients are averaged when an update is made."""

    def __init__(self, policy: str, settings: CriticSettings, device: torch.device, bf16: bool, gradient_checkpointing: bool) -> None:
        """Loads the policy's layers.

        Args:
            policy: Hugging Face name or folder of the policy that training starts from.
            settings: Learning rate, clips.
            device: Where it lives.
            bf16: Whether the layers compute in bfloat16 (the weights are float32).
            gradient_checkpointing: Whether activations are computed again in the backward pass.
        """
        self.settings, self.device, self._bf16 = settings, device, bf16
        # No dropout in either mode; training mode is what gradient checkpointing asks for.
        self.model = ValueModel(policy, gradient_checkpointing).to(device).train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        self._loss = torch.zeros((), device=device)

    def values(self, tensors: Tensors) -> torch.Tensor:
        """V of the state before each token of the completions and, in the last column, after all. Shape (B, T + 1)."""
        ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1).to(self.device)
        mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], dim=1).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            every: torch.Tensor = self.model(ids, mask)
        return every[:, tensors["prompt_ids"].size(1) - 1 :].float()

    def add_gradient(self, tensors: Tensors) -> None:
        """Adds the gradient of a micro-batch's share of the loss (arXiv 2005.12729, section 3):

        1 / (2 N) sum of max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) over the places of `value_mask`, N of them in the whole
        mini-batch on all processes.

        Args:
            tensors: Besides the tokens old_values, returns and value_mask of shape (B, T + 1), and value_count = N.
        """
        values, old, returns = self.values(tensors), tensors["old_values"], tensors["returns"]
        near = old + (values - old).clamp(-self.settings.value_clip, self.settings.value_clip)
        squares = torch.maximum((values - returns) ** 2, (near - returns) ** 2) * tensors["value_mask"]
        loss = 0.5 * squares.sum() / tensors["value_count"].clamp(min=1)
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss += loss.detach()

    def update(self, lr_scale: float) -> float:
        """Makes an update of what was added since the last one; returns the loss of the mini-batch.

        Args:
            lr_scale: Share of the peak learning rate that holds now.
        """
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if torch.distributed.is_initialized():
            for parameter in parameters:
                torch.distributed.all_reduce(parameter.grad)
            torch.distributed.all_reduce(self._loss)
        torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_gradient_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * lr_scale
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        loss = float(self._loss)
        self._loss.zero_()
        return loss

    def save(self, folder: Path) -> None:
        """Writes weights and optimiser beside the policy's."""
        torch.save({"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Takes up what `save` wrote.

        Raises:
            FileNotFoundError: The checkpoint has no critic.
        """
        state = torch.load(folder / FILE, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
