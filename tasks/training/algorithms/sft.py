"""SFT: maximum likelihood of the policy's tokens in successful trajectories, recorded or explored once."""

from __future__ import annotations

from tasks.training.algorithms.imitation import Imitation


class SFT(Imitation):
    """Clones successes; the loss is `CloningTrainer`'s."""

    trajectories: str | None = None
    """Parquet file, or folder of such files (the `rollouts` of another run), with trajectories of the same tokenizer. Empty: the policy
    that training starts from explores."""

    def recorded(self) -> str | None:
        """See `Imitation.recorded`."""
        return self.trajectories
