"""AgentEvol (arXiv 2406.04151, section 4): explore, keep what succeeded, clone it, explore with what was learned."""

from __future__ import annotations

from pydantic import PositiveInt

from tasks.training.algorithms.imitation import Imitation


class AgentEvol(Imitation):
    """Clones the policy's own successes, of all explorations so far."""

    explore_every: PositiveInt = 10
    """It explores anew after so many steps, and keeps the successes of all its explorations."""
    restart_from_base: bool = False
    """After each exploration the policy that training starts from is trained anew on all that was found, as the paper's script does;
    otherwise the present policy goes on. The learning rate then warms up anew as well."""

    def explorations(self, step: int) -> int:
        """See `Imitation.explorations`."""
        return step // self.explore_every + 1

    def restarts(self, step: int) -> bool:
        """See `Imitation.restarts`."""
        return self.restart_from_base and step > 0 and step % self.explore_every == 0
