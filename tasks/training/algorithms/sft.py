"""SFT: maximum likelihood of the policy's tokens in successful trajectories.

The trajectories are recorded, or explored once.
"""

from __future__ import annotations

from tasks.training.algorithms.imitation import Imitation


class SFT(Imitation):
    """Behaviour cloning of successes. The loss is in `CloningTrainer`."""

    trajectories: str | None = None
    """Parquet file, or folder of such files (the `rollouts` of another run), with trajectories
    of the same tokenizer. If empty, the initial policy explores."""

    def recorded(self) -> str | None:
        """Return the path of the recorded trajectories. Implements `Imitation.recorded`."""
        return self.trajectories
