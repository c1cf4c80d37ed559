"""Sessions of an echo world, with a manually set clock."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from environments.environment import SPLITS, Environment, Step, TaskIndexError, World
from environments.protocol import Reply
from environments.server.metrics import Metrics
from environments.server.sessions import Sessions

T = TypeVar("T")


class Echo(World):
    """A world whose observation repeats the action. It counts its open episodes."""

    name, version, instruction = "echo", "1", ""

    lists = dict.fromkeys(SPLITS, range(10))

    def __init__(self) -> None:
        self._open = 0

    def create(self) -> EchoEpisode:
        self._open += 1
        return EchoEpisode(self)


class EchoEpisode(Environment):
    def __init__(self, world: Echo) -> None:
        self.world = world
        self.performed: list[str] = []

    def reset(self, index: int) -> str:
        if index not in self.world.tasks("train"):
            raise TaskIndexError(f"no task {index}")
        return f"task {index}"

    def step(self, action: str) -> Step:
        self.performed.append(action)
        return Step(f"{len(self.performed)}: {action}", 0.0, False)

    def oracle_action(self) -> str:
        return ""

    def close(self) -> None:
        self.world._open -= 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(world: Echo | None = None, clock: Clock | None = None, **options: object) -> Sessions:
    return Sessions(world or Echo(), Metrics(lambda: 0), clock=clock or Clock(), **options)  # type: ignore[arg-type]


def now(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends, such as a call to a fast world."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the coroutine suspended")


def answer(sessions: Sessions, operation: str, call: tuple[Any, ...]) -> Reply:
    return now(sessions.answer(operation, call))


def create(sessions: Sessions, *arguments: Any, **options: Any) -> Reply:
    return now(sessions.create(*arguments, **options))
