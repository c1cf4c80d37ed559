"""Twin replay: does what the oracle does in the training task whose objective reads most like this one, with the differing words exchanged.

It looks at nothing else, so where it succeeds a task can be done without reading or looking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import cast

from environments.environment import EnumerableEnvironment, OracleError, World

MOST_TASKS = 500
"""Training tasks that are looked through at most, spread evenly over the list."""
MOST_TURNS = 60


@dataclass(frozen=True, slots=True)
class Objective:
    """What a training task asks for."""

    task: int
    words: tuple[str, ...]


class TwinReplay:
    """Finds twins in a world's training tasks."""

    def __init__(self, world: World, tasks: Sequence[int]) -> None:
        """
        Args:
            world: Its environments must tell their `objective`.
            tasks: The training tasks.
        """
        self._environment = cast(EnumerableEnvironment, world.create())
        self._objectives = []
        for task in tasks[:: -(-len(tasks) // MOST_TASKS)]:
            self._environment.reset(task)
            self._objectives.append(Objective(task, tuple(self._environment.objective.split())))
        self._plans: dict[int, list[str]] = {}

    def actions(self, objective: str) -> list[str]:
        """What the twin's oracle does, with the twin's words replaced by those that stand in their places here.

        Args:
            objective: What the task asks for, e.g. "birch fence".
        """
        words = tuple(objective.split())
        twin = max(self._objectives, key=lambda each: SequenceMatcher(None, each.words, words, autojunk=False).ratio())
        changed = SequenceMatcher(None, twin.words, words, autojunk=False).get_opcodes()
        actions = self._plan(twin.task)
        for kind, start, stop, here, until in changed:
            if kind == "replace":
                old, new = " ".join(twin.words[start:stop]), " ".join(words[here:until])
                actions = [f" {action} ".replace(f" {old} ", f" {new} ").strip() for action in actions]
        return actions

    def close(self) -> None:
        """Frees the environment."""
        self._environment.close()

    def _plan(self, task: int) -> list[str]:
        """The oracle's actions in a training task."""
        if task not in self._plans:
            self._environment.reset(task)
            plan: list[str] = []
            done = False
            while not done and len(plan) < MOST_TURNS:
                try:
                    plan.append(self._environment.oracle_action())
                except OracleError:
                    break
                done = self._environment.step(plan[-1]).done
            self._plans[task] = plan
        return self._plans[task]
