"""A minimal world for tests of the server: add numbers until the count is the task's index.

As a script it runs `python -m environments` with this world registered as "counting", and as
"slow_counting", whose steps block.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    TaskIndexError,
    World,
)
from environments.registry import WORLDS
from environments.server.agentgym import DIALECTS

TASKS = {"train": range(60), "validation": range(60, 80), "test": range(80, 100)}


class CountingEpisode(Environment):
    open_episodes = 0

    def __init__(self) -> None:
        CountingEpisode.open_episodes += 1
        self._closed = False
        self.goal: int | None = None
        self.count = 0
        self.done = True

    def reset(self, index: int) -> str:
        if not 0 <= index < 100:
            raise TaskIndexError(f"there is no task {index}; they are 0 to 99")
        self.goal, self.count, self.done = index, 0, False
        return f"Goal: {index}."

    def step(self, action: str) -> Step:
        if self.done:
            raise EpisodeOverError("the episode is over")
        match action.split():
            case ["add", number] if number.isascii() and number.isdecimal() and len(number) < 10:
                self.count += int(number)
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case ["add-slowly", number]:
                time.sleep(0.5)
                self.count += int(number)
            case ["await", path]:  # until the test creates the file
                Path(f"{path}.begun").touch()
                while not Path(path).exists():
                    time.sleep(0.01)
            case ["fail"]:
                raise RuntimeError("a bug in the world")
            case ["reward", value]:
                return Step("", float(value), False)
            case ["surrogate"]:
                return Step("\ud800", 0.0, False)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                return Step(f"Not understood: {action[:20]}", 0.0, False, refused=True)
        self.done = self.count == self.goal
        return Step(f"Count: {self.count}", 1.0 if self.done else 0.0, self.done)

    def oracle_action(self) -> str:
        if self.goal is None or self.count > self.goal:
            raise OracleError("too far")
        return f"add {self.goal - self.count}"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            CountingEpisode.open_episodes -= 1


class Counting(World):
    name = "counting"
    version = os.environ.get("COUNTING_VERSION", "1")
    instruction = "Reach the goal by `add N`."
    lists = TASKS

    def create(self) -> CountingEpisode:
        return CountingEpisode()

    def tag(self, index: int) -> str:
        return f"tens {index // 10}"


class SlowCounting(Counting):
    name = "slow_counting"
    blocking = True


def register() -> None:
    WORLDS["counting"] = "tests.support.counting_world:Counting"
    WORLDS["slow_counting"] = "tests.support.counting_world:SlowCounting"
    DIALECTS["counting"] = DIALECTS["slow_counting"] = replace(
        DIALECTS["textcraft"], views={"/goal": ("goal", str)}
    )


if __name__ == "__main__":
    register()
    from environments.__main__ import main

    sys.exit(main())
