"""Worlds that break the contract in one way each, for the tests of the conformance kit."""

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
    """Keeps the contract."""

    _session: type[Sound] = Sound
    lists = {"train": range(1, 60), "validation": range(60, 80), "test": range(80, 100)}  # noqa: RUF012

    def create(self) -> Sound:
        return self._session()


class NoInstruction(SoundWorld):
    instruction = " "


class SharedTasks(SoundWorld):
    lists = dict.fromkeys(SPLITS, range(1, 60))


class EmptyList(SoundWorld):
    lists = {**SoundWorld.lists, "easy": range(0)}  # noqa: RUF012


class LostOracle(Sound):
    def oracle_action(self) -> str:
        raise OracleError("lost")


class LostOracleWorld(SoundWorld):
    _session = LostOracle


class Tells(Sound):
    def valid_actions(self) -> Sequence[str]:
        return [self.oracle_action()]


class TellsWorld(SoundWorld):
    _session = Tells


class Drawn(Sound):
    def reset(self, index: int) -> str:
        return f"{super().reset(index)} {random.random()}"


class DrawnWorld(SoundWorld):
    _session = Drawn


class OfProcess(Sound):
    def reset(self, index: int) -> str:
        return f"{super().reset(index)} {os.getpid()}"


class OfProcessWorld(SoundWorld):
    _session = OfProcess


class Generous(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.observation, 2.0 * step.reward, step.done)


class GenerousWorld(SoundWorld):
    _session = Generous


class Brittle(Sound):
    def step(self, action: str) -> Step:
        if "\x00" in action:
            raise ValueError("a zero byte")
        return super().step(action)


class BrittleWorld(SoundWorld):
    _session = Brittle


class Endless(Sound):
    def close(self) -> None:
        self.done = False


class EndlessWorld(SoundWorld):
    _session = Endless
