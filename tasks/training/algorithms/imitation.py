"""What the methods by imitation share: they learn from trajectories that were recorded, or explored by an earlier policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt

from configs.algorithm import Algorithm
from tasks.training.offline_selection import batch_of_step, successes

if TYPE_CHECKING:
    from configs.experiment import Experiment
    from tasks.rollout.trajectory import Trajectory


class Imitation(Algorithm):
    """Explores now and then, and learns from what was found. A method chooses what of it, and the loss."""

    unit: ClassVar[int] = 1
    """Trajectories that belong together: 2 for pairs."""

    explore_groups: PositiveInt = 64
    """Groups of episodes that one exploration plays, each of rollout.group_size."""

    def explorations(self, step: int) -> int:
        """How many explorations a training step (from 0) learns from."""
        return 1

    def recorded(self) -> str | None:
        """Where the trajectories lie if nothing is to be explored."""
        return None

    def batch(self, pool: Sequence[Trajectory], step: int, size: int, seed: int) -> list[Trajectory]:
        """The trajectories of a step, `size` of those found so far.

        Raises:
            NothingToImitateError: None of them is good enough.
        """
        return batch_of_step(successes(pool), step, size, seed)

    def restarts(self, step: int) -> bool:
        """Whether the policy goes back to the one that training starts from before this step (from 0)."""
        return False

    def check(self, experiment: Experiment) -> None:
        """See `Algorithm.check`."""
        if experiment.rollout.max_off_policy_steps:
            raise ValueError(
                f"rollout.max_off_policy_steps ({experiment.rollout.max_off_policy_steps}) plays batches ahead, which {self.name} "
                "cannot use; set it to 0"
            )
        if experiment.curriculum.looks_back:
            raise ValueError(
                f"curriculum.kind ({experiment.curriculum.kind}) decides by the episodes of every step, and {self.name} plays some only "
                "now and then; take another schedule, e.g. stepwise"
            )

    def trainer(self) -> type[Any]:
        """See `Algorithm.trainer`."""
        from tasks.training.imitation_trainers import CloningTrainer

        return CloningTrainer

    def batches(self) -> type[Any]:
        """Recorded or explored trajectories."""
        from tasks.training.offline_batches import OfflineBatches

        return OfflineBatches
