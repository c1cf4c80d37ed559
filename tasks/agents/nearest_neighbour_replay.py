"""Nearest-neighbour replay: a baseline that replays the oracle's actions of a training task.

It selects the training task with the most similar objective and exchanges the differing words. It
uses no other input, so a task on which it succeeds can be done without reading or looking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from string import punctuation

from environments.environment import OracleError, World

MAX_TASKS = 500
"""Maximum number of training tasks compared, spaced evenly over the list."""
MAX_TURNS = 60


@dataclass(frozen=True, slots=True)
class Objective:
    """Objective of a training task."""

    task: int
    words: tuple[str, ...]


class NearestNeighbourReplay:
    """Finds the nearest training task of an objective."""

    def __init__(self, world: World, tasks: Sequence[int]) -> None:
        """Read the objectives of the training tasks.

        Args:
            world: Its environments must provide their `objective`.
            tasks: Indices of the training tasks.
        """
        self._environment = world.create()
        self._objectives = []
        for task in tasks[:: -(-len(tasks) // MAX_TASKS)]:
            self._environment.reset(task)
            self._objectives.append(Objective(task, tuple(self._environment.objective.split())))
        self._plans: dict[int, list[str]] = {}

    def actions(self, objective: str) -> list[str]:
        """Return the oracle's actions in the nearest task, with the differing words replaced.

        Args:
            objective: Objective of the task, e.g. "birch fence".
        """
        words = tuple(objective.split())
        nearest = max(
            self._objectives,
            key=lambda each: SequenceMatcher(None, each.words, words, autojunk=False).ratio(),
        )
        changed = SequenceMatcher(None, nearest.words, words, autojunk=False).get_opcodes()
        actions = self._plan(nearest.task)
        for kind, start, stop, here, until in changed:
            if kind == "replace":
                # An objective may quote a name that actions write between brackets or tags.
                old = " ".join(nearest.words[start:stop]).strip(punctuation)
                new = " ".join(words[here:until]).strip(punctuation)
                if old:
                    name = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")
                    escaped = new.replace("\\", r"\\")
                    actions = [name.sub(escaped, action) for action in actions]
        return actions

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _plan(self, task: int) -> list[str]:
        """Return the oracle's actions in a training task."""
        if task not in self._plans:
            self._environment.reset(task)
            plan: list[str] = []
            done = False
            while not done and len(plan) < MAX_TURNS:
                try:
                    plan.append(self._environment.oracle_action())
                except OracleError:
                    break
                done = self._environment.step(plan[-1]).done
            self._plans[task] = plan
        return self._plans[task]
