"""A sound world, and worlds that each break one rule of the contract, for the conformance kit."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from environments.environment import SPLITS, EpisodeOverError, OracleError, Step
from tests.support.counting_world import Counting, CountingEpisode


class Sound(CountingEpisode):
    def step(self, action: str) -> Step:
        if self.done:
            raise EpisodeOverError("the episode is over")
        if not action.startswith("add"):
            return Step("Not understood", 0.0, False, refused=True)
        return super().step(action)

    def valid_actions(self) -> Sequence[str]:
        return ["add 99999999", "add 0"]

    def close(self) -> None:
        super().close()
        self.done = True


class SoundWorld(Counting):
    """A world that keeps the contract."""

    _session: type[Sound] = Sound
    lists = {"train": range(1, 60), "validation": range(60, 80), "test": range(80, 100)}  # noqa: RUF012

    def create(self) -> Sound:
        return self._session()


class Separated(Sound):
    def reset(self, index: int) -> str:
        return f"{super().reset(index)}\u2028Line 2"


class SeparatedWorld(SoundWorld):
    """A sound world whose first observation contains a line separator of Unicode."""

    _session = Separated


class NoInstruction(SoundWorld):
    """A world with an empty instruction."""

    instruction = " "


class SharedTasks(SoundWorld):
    """A world whose task lists overlap."""

    lists = dict.fromkeys(SPLITS, range(1, 60))


class EmptyList(SoundWorld):
    """A world with an empty task list."""

    lists = {**SoundWorld.lists, "easy": range(0)}  # noqa: RUF012


class LostOracle(Sound):
    def oracle_action(self) -> str:
        raise OracleError("lost")


class LostOracleWorld(SoundWorld):
    """A world whose oracle fails."""

    _session = LostOracle


class OracleListed(Sound):
    def valid_actions(self) -> Sequence[str]:
        return [self.oracle_action()]


class OracleListedWorld(SoundWorld):
    """A world whose only valid action is the oracle's."""

    _session = OracleListed


class Unseeded(Sound):
    def reset(self, index: int) -> str:
        return f"{super().reset(index)} {random.random()}"


class UnseededWorld(SoundWorld):
    """A world whose first observation contains an unseeded random number."""

    _session = Unseeded


class ProcessDependent(Sound):
    def reset(self, index: int) -> str:
        return f"{super().reset(index)} {os.getpid()}"


class ProcessDependentWorld(SoundWorld):
    """A world whose first observation contains the process id."""

    _session = ProcessDependent


class Generous(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.observation, 2.0 * step.reward, step.done)


class GenerousWorld(SoundWorld):
    """A world whose rewards exceed its reward range."""

    _session = Generous


class Brittle(Sound):
    def step(self, action: str) -> Step:
        if "\x00" in action:
            raise ValueError("a zero byte")
        return super().step(action)


class BrittleWorld(SoundWorld):
    """A world that crashes on an action with a null byte."""

    _session = Brittle


class Endless(Sound):
    def close(self) -> None:
        self.done = False


class EndlessWorld(SoundWorld):
    """A world whose episodes accept actions after they are closed."""

    _session = Endless
