"""AgentEvol (arXiv 2406.04151, section 4): explore and clone the successes, in turn."""

from __future__ import annotations

from pydantic import PositiveInt

from tasks.training.algorithms.imitation import Imitation


class AgentEvol(Imitation):
    """Clones the policy's own successes from all explorations so far."""

    explore_every: PositiveInt = 10
    """Training steps between two explorations. The successes of all explorations are kept."""
    restart_from_base: bool = False
    """Whether each exploration is followed by training from the initial policy on all successes
    so far, as in the paper's script. Otherwise training continues from the current policy. A
    restart also repeats the learning rate warm-up."""

    def explorations(self, step: int) -> int:
        """Return the number of explorations that a training step (from 0) uses."""
        return step // self.explore_every + 1

    def restarts(self, step: int) -> bool:
        """Whether the policy restarts before this step. Implements `Imitation.restarts`."""
        return self.restart_from_base and step > 0 and step % self.explore_every == 0
