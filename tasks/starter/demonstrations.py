"""Expert demonstrations with injected mistakes ("detours"; noise injection as in arXiv 1703.09327), to clone the starter policy from.

An oracle's episode never shows how to go on after a mistake, and a small policy makes many. So now and then another action is
taken than the oracle's; what follows shows the way back. Detours are context, never an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from environments.environment import Environment, OracleError, World

MAX_TURNS = 40
POOL = 50
"""Solutions from which a detour's actions and words are taken; all of them would cost the more the more tasks there are."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a demonstration.

    Attributes:
        action: What was done.
        observation: What came back.
        by_oracle: Whether the oracle would have done it; otherwise it is a detour.
        thought: What the oracle thought; empty where its world does not tell.
    """

    action: str
    observation: str
    by_oracle: bool
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode that ends in success, after `MAX_TURNS`, or where a detour has left the oracle without a solution."""

    task: int
    first_observation: str
    exchanges: tuple[Exchange, ...]


def demonstrate(
    environment: Environment, task: int, random: Random, detour: Callable[[str], str] | None = None, detour_rate: float = 0.0
) -> Demonstration:
    """Plays `task`; with the probability `detour_rate`, what `detour` makes of the oracle's action is done in its place.

    Raises:
        OracleError: The oracle has no solution from the start.
    """
    first_observation = environment.reset(task)
    think = getattr(environment, "oracle_thought", str)
    exchanges: list[Exchange] = []
    done = False
    while not done and len(exchanges) < MAX_TURNS:
        try:
            thought, right = think(), environment.oracle_action()
        except OracleError:
            if all(exchange.by_oracle for exchange in exchanges):
                raise
            break
        action = detour(right) if detour is not None and random.random() < detour_rate else right
        step = environment.step(action)
        done = step.done
        exchanges.append(Exchange(action, step.observation, action == right, thought))
    return Demonstration(task, first_observation, tuple(exchanges))


class Demonstrator:
    """Plays numbered demonstrations, without end: each pass plays all tasks in an order and with detours of its own.

    Number n is the same whoever plays it, so several processes can share the work. A detour is, with equal chances, the right action with
    one word or number replaced, another action of the same task's solution, or an action of some other task's.
    """

    def __init__(self, world: World, tasks: Sequence[int], seed: int, detour_rate: float) -> None:
        """
        Args:
            world: Whose oracle demonstrates. One that cannot find back (`oracle_recovers = False`) makes no detours.
            tasks: What is demonstrated.
            seed: Of the order and the detours.
            detour_rate: Share of the actions that are detours.
        """
        self._tasks, self._seed = list(tasks), seed
        self._detour_rate = detour_rate if getattr(world, "oracle_recovers", True) else 0.0
        self._world = world
        self._environment = world.create()
        self._aside: Environment | None = None
        """Where a solution is played that an episode under way needs; few of them do."""

    def play(self, number: int) -> Demonstration:
        """The demonstration of that number, from 0."""
        passes, place = divmod(number, len(self._tasks))
        task = self._order(passes)[place]
        random = Random(f"demonstration {self._seed} {number}")
        if not self._detour_rate:
            return demonstrate(self._environment, task, random)
        actions, words = self._pool

        def detour(right: str) -> str:
            choice = random.randrange(3)
            return near_miss(right, words, random) if choice == 0 else random.choice(self._solution(task) if choice == 1 else actions)

        return demonstrate(self._environment, task, random, detour, self._detour_rate)

    def close(self) -> None:
        """Frees the environments."""
        self._environment.close()
        if self._aside is not None:
            self._aside.close()

    @cached_property
    def _pool(self) -> tuple[list[str], list[str]]:
        """Actions of some tasks' solutions, and their words."""
        actions = sorted({action for task in self._order(0)[:POOL] for action in self._solution(task)})
        return actions, sorted({word for action in actions for word in action.split()})

    def _order(self, passes: int) -> list[int]:
        return _shuffled(tuple(self._tasks), f"demonstrations {self._seed} {passes}")

    def _solution(self, task: int) -> list[str]:
        if self._aside is None:
            self._aside = self._world.create()
        return [exchange.action for exchange in demonstrate(self._aside, task, Random(0)).exchanges]


@lru_cache(maxsize=2)
def _shuffled(tasks: tuple[int, ...], seed: str) -> list[int]:
    order = list(tasks)
    Random(seed).shuffle(order)
    return order


def near_miss(action: str, words: Sequence[str], random: Random) -> str:
    """The action with one of its words replaced by another of `words`, a number by a number."""
    parts = action.split()
    place = random.randrange(len(parts))
    parts[place] = random.choice([word for word in words if word.isdigit() == parts[place].isdigit()] or parts)
    return " ".join(parts)
