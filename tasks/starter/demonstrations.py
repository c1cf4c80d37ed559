"""Expert demonstrations with injected mistakes ("detours"; noise injection as in arXiv 1703.09327), to clone the starter policy from.

An oracle's episode never shows how to go on after a mistake, and a small policy makes many. So now and then another action is
taken than the oracle's; what follows shows the way back. Detours are context, never an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from environments.environment import Environment, World

MAX_TURNS = 40


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a demonstration.

    Attributes:
        action: What was done.
        observation: What came back.
        by_oracle: Whether the oracle would have done it; otherwise it is a detour.
    """

    action: str
    observation: str
    by_oracle: bool


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode that ends in success, or after `MAX_TURNS`."""

    task: int
    first_observation: str
    exchanges: tuple[Exchange, ...]


def demonstrate(
    environment: Environment, task: int, random: Random, detour: Callable[[str], str] | None = None, detour_rate: float = 0.0
) -> Demonstration:
    """Plays `task`; with the probability `detour_rate`, what `detour` makes of the oracle's action is done in its place."""
    first_observation = environment.reset(task)
    exchanges: list[Exchange] = []
    done = False
    while not done and len(exchanges) < MAX_TURNS:
        right = environment.oracle_action()
        action = detour(right) if detour is not None and random.random() < detour_rate else right
        step = environment.step(action)
        done = step.done
        exchanges.append(Exchange(action, step.observation, action == right))
    return Demonstration(task, first_observation, tuple(exchanges))


def demonstrations(world: World, tasks: Sequence[int], seed: int, detour_rate: float) -> Iterator[Demonstration]:
    """Endless demonstrations: each pass plays all of `tasks` in an order and with detours of its own.

    A detour is, with equal chances, the right action with one word or number replaced, another action of the same task's
    solution, or an action of any task's solution.
    """
    random = Random(f"demonstrations {seed}")
    environment = world.create()
    solutions = {task: [exchange.action for exchange in demonstrate(environment, task, random).exchanges] for task in tasks}
    actions = sorted({action for solution in solutions.values() for action in solution})
    words = sorted({word for action in actions for word in action.split()})

    def detour(solution: Sequence[str], right: str) -> str:
        choice = random.randrange(3)
        return near_miss(right, words, random) if choice == 0 else random.choice(solution if choice == 1 else actions)

    order = list(tasks)
    while True:
        random.shuffle(order)
        for task in order:
            yield demonstrate(environment, task, random, partial(detour, solutions[task]), detour_rate)


def near_miss(action: str, words: Sequence[str], random: Random) -> str:
    """The action with one of its words replaced by another of `words`, a number by a number."""
    parts = action.split()
    place = random.randrange(len(parts))
    parts[place] = random.choice([word for word in words if word.isdigit() == parts[place].isdigit()] or parts)
    return " ".join(parts)
