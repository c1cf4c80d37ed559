"""Context parallelism: several ranks compute each packed row together.

Each rank computes a part of the row's tokens. Around the attention the ranks exchange tokens for
heads: each attends to the whole row with its share of the heads (Ulysses, arXiv 2309.14509,
section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from tasks.rollout.trajectory import Trajectory
from tasks.training.packing import shares_prefixes


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """The ranks that compute the same rows as this one.

    Attributes:
        mesh: These ranks, in one dimension.
    """

    mesh: DeviceMesh

    @property
    def ranks(self) -> int:
        """Number of ranks that compute a row together."""
        return self.mesh.size()

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of them."""
        return self.mesh.get_local_rank() == 0

    def gathered(self, local: list[Trajectory]) -> list[Trajectory]:
        """Return the trajectories of all these ranks, by group and member."""
        parts: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(parts, local, group=self.mesh.get_group())
        return sorted((t for part in parts for t in part), key=lambda t: (t.group, t.member))

    def own_tokens(self, tokens: int) -> range:
        """Return the places of this rank's part of a row. The last parts may exceed the row."""
        length = -(-tokens // self.ranks)
        begin = length * self.mesh.get_local_rank()
        return range(begin, begin + length)

    def part(self, row: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a row of shape (1, N), with zeros beyond its end."""
        own = self.own_tokens(row.size(1))
        return pad(row, (0, len(own) * self.ranks - row.size(1)))[:, own.start : own.stop]

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the values of all these ranks. A rank's gradient is that of its own values.

        Each place must be 0 on all ranks but one.
        """
        total = values.detach().clone()
        torch.distributed.all_reduce(total, group=self.mesh.get_group())
        return values + (total - values.detach())

    def to_heads(self, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
        """Exchange a part of the tokens for a share of the heads.

        Args:
            tensor: Shape (1, heads, tokens of this rank, width). Heads are repeated if there are
                fewer than ranks.
            tokens: Number of tokens of the row, N.

        Returns:
            Shape (1, heads of this rank, N, width).
        """
        if (heads := tensor.size(1)) < self.ranks:
            tensor = tensor.repeat_interleave(self.ranks // heads, dim=1)
        return self._exchanged(tensor)[:, :, :tokens]

    def to_tokens(self, tensor: torch.Tensor) -> torch.Tensor:
        """Exchange a share of the heads for a part of the tokens.

        Args:
            tensor: Shape (1, N, heads of this rank, width).

        Returns:
            Shape (1, tokens of this rank, heads, width).
        """
        missing = -tensor.size(1) % self.ranks
        return self._exchanged(pad(tensor, (0, 0, 0, 0, 0, missing)))

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather the third dimension from all these ranks, and split the second among them."""
        shared = DTensor.from_local(tensor.contiguous(), self.mesh, [Shard(2)])
        return shared.redistribute(placements=[Shard(1)]).to_local()


def context_parallel(ranks: int, model: Any) -> ContextParallel | None:
    """Let every `ranks` consecutive ranks compute rows together. None for one rank each.

    Every rank must call it.

    Args:
        ranks: Number of ranks for each row, a divisor of the number of all ranks.
        model: The policy.

    Raises:
        ValueError: The policy's rows are not packed, or its heads cannot be shared.
    """
    if ranks == 1:
        return None
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    if not shares_prefixes(model):
        raise ValueError(
            f"context_parallel: {ranks} needs packed rows, which this policy does not read; set "
            "policy.dtype to bfloat16, or remove it from the launch file"
        )
    if heads % ranks or (of_keys % ranks and ranks % of_keys):
        raise ValueError(
            f"context_parallel: {ranks} does not divide the policy's {heads} heads and {of_keys} "
            "key heads; change it in the launch file"
        )
    processes = PartialState()
    mesh = init_device_mesh(
        processes.device.type,
        (processes.num_processes // ranks, ranks),
        mesh_dim_names=("rows", "tokens"),
    )
    return ContextParallel(mesh["tokens"])
