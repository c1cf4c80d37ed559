"""Define a world in one file, in which the agent guesses a number from 1 to 1000.

    python examples/own_world.py [N_TASKS]

This evaluates the expert of the world. Recipes and commands can also name the world:

    PYTHONPATH=examples agentgym collect own_world:Guessing --oracle
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256

from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    TaskIndexError,
    World,
)
from flows.api import evaluate

HIGHEST = 1000
LISTS = {"train": range(400), "validation": range(400, 450), "test": range(450, 500)}


class GuessingEnvironment(Environment):
    """An episode that answers each guess with "higher" or "lower". The right guess earns 1."""

    def __init__(self) -> None:
        self._secret: int | None = None
        self._low, self._high = 1, HIGHEST

    def reset(self, index: int) -> str:
        """Start task `index`. The digest gives the same number on every machine."""
        if not 0 <= index < 500:
            raise TaskIndexError(f"guessing has no task {index}; its tasks are 0 to 499")
        digest = sha256(f"guessing {index}".encode()).digest()
        self._secret = int.from_bytes(digest[:8]) % HIGHEST + 1
        self._low, self._high = 1, HIGHEST
        return f"I think of a number from 1 to {HIGHEST}."

    def step(self, action: str) -> Step:
        """Answer a guess."""
        if self._secret is None:
            raise EpisodeOverError("no episode is in progress; reset first")
        guess = re.fullmatch(r"guess ([0-9]{1,4})", action.strip())
        if guess is None:
            return Step(f"Write 'guess' and a number up to {HIGHEST}.", 0.0, False, refused=True)
        number = int(guess[1])
        if number == self._secret:
            self._secret = None
            return Step("That is it.", 1.0, True)
        if number < self._secret:
            self._low = max(self._low, number + 1)
            return Step("Higher.", 0.0, False)
        self._high = min(self._high, number - 1)
        return Step("Lower.", 0.0, False)

    def oracle_action(self) -> str:
        """Return the middle of the remaining numbers, which needs at most ten guesses."""
        if self._secret is None:
            raise OracleError("no episode is in progress")
        return f"guess {(self._low + self._high) // 2}"

    def close(self) -> None:
        """End the episode."""
        self._secret = None


class Guessing(World):
    """The world: its tasks, its instruction and its sessions."""

    name = "guessing"
    version = "1"
    instruction = (
        f"You guess a number from 1 to {HIGHEST}. Answer every message with one action:\n"
        "guess N: you learn whether the number is higher or lower"
    )
    lists = LISTS

    def create(self) -> GuessingEnvironment:
        """Return a new session."""
        return GuessingEnvironment()


def main() -> None:
    """Evaluate the expert at two horizons, and print its success."""
    n_tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    expert = evaluate(
        "own_world:Guessing", "oracle", tasks="test", horizons=[5, 10], n_tasks=n_tasks
    )
    print(expert.success()[["horizon", "success", "success_low", "success_high", "turns"]])
    (_, last) = expert.cells
    print(expert.episodes(last)[["task", "n_turns", "outcome"]].head())


if __name__ == "__main__":
    main()
