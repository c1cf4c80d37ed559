"""The base of imitation methods.

They train on trajectories that are recorded, or explored by an earlier policy.
"""

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
    """Explores periodically and trains on the results.

    A method selects the trajectories and the loss.
    """

    unit: ClassVar[int] = 1
    """Number of trajectories that belong together: 2 for pairs."""

    explore_groups: PositiveInt = 64
    """Groups per exploration, each of rollout.group_size episodes."""

    def explorations(self, step: int) -> int:
        """Return the number of explorations that a training step (from 0) uses."""
        return 1

    def recorded(self) -> str | None:
        """Return the path of recorded trajectories, or None to explore."""
        return None

    def batch(self, pool: Sequence[Trajectory], step: int, size: int, seed: int) -> list[Trajectory]:
        """Select the `size` trajectories of a step from all trajectories so far.

        Raises:
            NothingToImitateError: No trajectory is good enough.
        """
        return batch_of_step(successes(pool), step, size, seed)

    def restarts(self, step: int) -> bool:
        """Whether the policy is reset to the initial one before this step (from 0)."""
        return False

    def check(self, experiment: Experiment) -> None:
        """Check the algorithm against the rest of the recipe. Implements `Algorithm.check`."""
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
        """Return the trainer class. Implements `Algorithm.trainer`."""
        from tasks.training.imitation_trainers import CloningTrainer

        return CloningTrainer

    def batches(self) -> type[Any]:
        """Return the class of recorded or explored batches. Implements `Algorithm.batches`."""
        from tasks.training.offline_batches import OfflineBatches

        return OfflineBatches
