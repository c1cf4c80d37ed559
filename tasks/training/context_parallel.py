"""Context parallelism: several ranks compute each packed row together.

Each rank computes a part of the row's tokens. Around the attention the ranks exchange tokens for
heads: each attends to the whole row with its share of the heads (Ulysses, arXiv 2309.14509,
section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from tasks.rollout.trajectory import Trajectory
from tasks.training.packing import shares_prefixes
from tasks.training.process_group import with_patience

T = TypeVar("T")
BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings whose factors depend on the last position, which only one rank knows."""


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

    def gathered(self, local: list[Trajectory]) -> list[Trajectory]:
        """Return the trajectories of all these ranks, by group and member."""
        parts: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(parts, local, group=self.mesh.get_group())
        return sorted((t for part in parts for t in part), key=lambda t: (t.group, t.member))

    def from_first(self, compute: Callable[[], T]) -> T:
        """Let the first of these ranks compute something, and return it on all of them.

        An exception is raised on all of them, too.
        """
        box: list[Any] = [None]
        if self.mesh.get_local_rank() == 0:
            try:
                box = [compute()]
            except Exception as problem:  # noqa: BLE001 - raised below
                box = [problem]
        torch.distributed.broadcast_object_list(box, group=self.mesh.get_group(), group_src=0)
        if isinstance(box[0], Exception):
            raise box[0]
        found: T = box[0]
        return found

    def own_tokens(self, tokens: int) -> range:
        """Return the places of this rank's part of a row. The last parts may exceed the row."""
        length = -(-tokens // self.ranks)
        begin = length * self.mesh.get_local_rank()
        return range(begin, begin + length)

    def own_targets(
        self, targets: dict[str, torch.Tensor], tokens: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the targets in this rank's part of a packed row, and which of all targets these are.

        Args:
            targets: The arguments of `Packed.targets`.
            tokens: Tokens of the packed row.
        """
        own, labels, places = self.own_tokens(tokens), targets["shift_labels"], targets["score_at"]
        inside = (places >= own.start) & (places < own.stop)
        if not inside.any():
            return {
                "shift_labels": labels.new_full((1, 1), -100),
                "score_at": places[:1] * 0,
            }, inside
        return {"shift_labels": labels[:, inside], "score_at": places[inside] - own.start}, inside

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


def context_parallel(ranks: int, policy: Any, reference: Any = None) -> ContextParallel | None:
    """Let every `ranks` consecutive ranks compute rows together. None for one rank each.

    Every rank must call it.

    Args:
        ranks: Number of ranks for each row, a divisor of the number of all ranks.
        policy: The policy.
        reference: The model of the KL term, if it is loaded.

    Raises:
        ValueError: The policy's rows are not packed, or the heads of a model cannot be shared.
    """
    if ranks == 1:
        return None
    if not shares_prefixes(policy):
        raise ValueError(
            f"context_parallel: {ranks} needs packed rows with shared prefixes, which the policy "
            f"({policy.config.model_type}) does not read here; remove it from the launch file"
        )
    for model in (policy, reference):
        if model is not None and shares_prefixes(model):
            _check_layers(ranks, model.config.get_text_config())
    processes = PartialState()
    mesh = with_patience(
        init_device_mesh(
            processes.device.type,
            (processes.num_processes // ranks, ranks),
            mesh_dim_names=("rows", "tokens"),
        )
    )
    return ContextParallel(mesh["tokens"])


def rank_of_group(group: int, ranks: int, together: int) -> int:
    """Return the rank to which a group of episodes belongs.

    Groups go to the shares of the batch in turn, and within a share to its ranks in turn.

    Args:
        group: Number of the group.
        ranks: Number of all ranks.
        together: Number of consecutive ranks that compute rows together, and have the same share.
    """
    shares = ranks // together
    return (group % shares) * together + (group // shares) % together


def _check_layers(ranks: int, text: Any) -> None:
    """
    Raises:
        ValueError: `ranks` cannot share the layers of this text configuration.
    """
    heads = text.num_attention_heads
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    if heads % ranks or (of_keys % ranks and ranks % of_keys):
        raise ValueError(
            f"context_parallel: {ranks} does not divide the {heads} heads and {of_keys} key heads "
            f"of a model ({text.model_type}); change it in the launch file"
        )
    rope = (getattr(text, "rope_parameters", None) or {}).get("rope_type")
    if rope in BY_LENGTH:
        raise ValueError(
            f"context_parallel: {ranks} does not support rotary embeddings of type {rope} "
            f"({text.model_type}); remove it from the launch file"
        )
