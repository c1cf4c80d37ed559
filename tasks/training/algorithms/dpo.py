"""DPO (arXiv 2305.18290): prefers a success to a failure of the same task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat

from tasks.training.algorithms.sft import SFT
from tasks.training.offline_selection import batch_of_step, preferences

if TYPE_CHECKING:
    from tasks.rollout.trajectory import Trajectory


class DPO(SFT):
    """Trains on pairs of trajectories. The loss is in `PreferenceTrainer`."""

    unit: ClassVar[int] = 2

    beta: PositiveFloat = 0.1
    """Strength of the constraint to the initial policy (arXiv 2305.18290)."""
    cloning_weight: NonNegativeFloat = 0.0
    """Weight of sft's loss on the successes, which is added (arXiv 2404.19733, equation 2, with
    1). Preferences alone may make both trajectories of a pair less likely."""

    def batch(self, pool: Sequence[Trajectory], step: int, size: int, seed: int) -> list[Trajectory]:
        """Return successes and failures alternately. Implements `Imitation.batch`."""
        return [t for pair in batch_of_step(preferences(pool, seed), step, size // 2, seed) for t in pair]

    def trainer(self) -> type[Any]:
        """Return the trainer class. Implements `Algorithm.trainer`."""
        from tasks.training.imitation_trainers import PreferenceTrainer

        return PreferenceTrainer
