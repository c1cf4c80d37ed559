"""Mixtures: several worlds as one, to train one policy on all of them.

For example, "textcraft+searchqa" has the tasks of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from configs.mixture import SEPARATOR, member_of, weighted_lists
from environments.environment import (
    SPLITS,
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    TaskIndexError,
    World,
    WorldError,
)
from environments.tools import Tool


class MixedEnvironment(Environment):
    """One session that plays episodes of any of the worlds.

    The session of each world is created on first use. Optional members (`state_key` and so on) are
    those of the current world. So are attributes that only drawings use.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds
        self._sessions: dict[int, Environment] = {}
        self._playing: Environment | None = None

    def reset(self, index: int) -> str:
        """Begin a task. See `Environment.reset`."""
        if index < 0:
            raise TaskIndexError(f"a mixture has no task {index}")
        index, number = divmod(index, len(self._worlds))
        if number not in self._sessions:
            self._sessions[number] = self._worlds[number].create()
        self._playing = self._sessions[number]
        return self._playing.reset(index)

    def step(self, action: str) -> Step:
        """Perform one action. See `Environment.step`."""
        return self._current().step(action)

    def oracle_action(self) -> str:
        """Return the expert action of the current world. See `Environment.oracle_action`."""
        if self._playing is None:
            raise OracleError("no episode is in progress")
        return self._playing.oracle_action()

    def oracle_thought(self) -> str:
        """Return the thought of the current world's expert. See `Environment.oracle_thought`."""
        return self._current().oracle_thought()

    def state_key(self) -> str | None:
        """Return the state's key in the current world. See `Environment.state_key`."""
        return self._current().state_key()

    @property
    def objective(self) -> str:
        """The task's goal. See `Environment.objective`."""
        return self._current().objective

    def valid_actions(self) -> Sequence[str]:
        """Return the valid actions of the current world. See `Environment.valid_actions`."""
        return self._current().valid_actions()

    def _current(self) -> Environment:
        if self._playing is None:
            raise EpisodeOverError("no episode is in progress; reset first")
        return self._playing

    def close(self) -> None:
        """Free the sessions of all worlds."""
        for session in self._sessions.values():
            session.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._playing is None:
            raise AttributeError(name)
        return getattr(self._playing, name)


class Mixture(World):
    """A mixture of worlds. See `World` and `configs.mixture`.

    Attributes:
        success_score: The success score that all worlds share.
        reward_range: From the smallest to the largest reward of any world.
        max_sessions: The smallest limit of any world.
    """

    def __init__(self, name: str, worlds: Sequence[World]) -> None:
        """
        Args:
            name: Name in a recipe, e.g. "textcraft+searchqa".
            worlds: At least two, in the order of the name.

        Raises:
            WorldError: The worlds have different success scores.
        """
        self._worlds = tuple(worlds)
        self.name = name
        self.version = SEPARATOR.join(world.version for world in worlds)
        self.rules = worlds[0].rules
        self.instruction = "\n\n".join(
            [
                "The first message shows which of these worlds you are in.",
                *(w.instruction for w in worlds),
            ]
        )
        scores = {world.success_score for world in worlds}
        if len(scores) > 1:
            raise WorldError(
                f"{self.name} cannot be mixed: its worlds have different success scores "
                f"({sorted(scores)})"
            )
        self.success_score = scores.pop()
        ranges = [world.reward_range for world in worlds]
        self.reward_range = (min(low for low, _ in ranges), max(high for _, high in ranges))
        self.blocking = any(world.blocking for world in worlds)
        self.oracle_recovers = all(world.oracle_recovers for world in worlds)
        self.max_sessions = min(
            (world.max_sessions for world in worlds if world.max_sessions is not None), default=None
        )

    @property
    def lists(self) -> dict[str, tuple[int, ...]]:
        """The splits. Any further list is named by the lists of the worlds, see `tasks`."""
        return {split: self.tasks(split) for split in SPLITS}

    @property
    def tool_lists(self) -> Sequence[Sequence[Tool]]:
        """The tools of each world. See `World.tool_lists`."""
        return [world.tools for world in self._worlds]

    def create(self) -> MixedEnvironment:
        """Return a new session, before its first reset."""
        return MixedEnvironment(self._worlds)

    def prepare(self) -> None:
        """Run the worlds' own set-up work before the first session."""
        for world in self._worlds:
            world.prepare()

    def close(self) -> None:
        """Free what the sessions of each world share."""
        for world in self._worlds:
            world.close()

    def tasks(self, name: str) -> tuple[int, ...]:
        """Return the tasks of a list of each world, interleaved in proportion to the weights.

        A list with more tasks than its share contributes an evenly spaced subset.

        Args:
            name: See `configs.mixture.weighted_lists`.

        Raises:
            KeyError: A world has no such list.
        """
        named = weighted_lists(self.name, name)
        lists = [
            (world.tasks(each), weight)
            for world, (each, weight) in zip(self._worlds, named, strict=True)
        ]
        smallest = min(len(tasks) / weight for tasks, weight in lists)
        placed = []
        for number, (tasks, weight) in enumerate(lists):
            share = min(len(tasks), max(1, round(smallest * weight)))
            placed += [
                ((k + 0.5) / share, number, tasks[k * len(tasks) // share]) for k in range(share)
            ]
        return tuple(index * len(self._worlds) + number for _, number, index in sorted(placed))

    def tag(self, index: int) -> str:
        """Return the name of the world that a task belongs to."""
        return member_of(self.name, index)[0]
