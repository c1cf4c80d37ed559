"""Expert demonstrations with injected mistakes ("detours"), the data for the starter policy.

An oracle's episodes never show how to recover from a mistake, and a small policy makes many. Some
oracle actions are therefore replaced, and the following turns show the recovery. Detours are
context only and are never imitated. The method is noise injection as in arXiv 1703.09327.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from environments.environment import Environment, OracleError, World

MAX_TURNS = 40
POOL = 50
"""Number of solutions that supply the actions and words of detours. Using all tasks would cost time
in proportion to their number.
"""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a demonstration.

    Attributes:
        action: The action taken.
        observation: The observation that followed.
        by_oracle: Whether this is the oracle's action. False for a detour.
        thought: The oracle's thought. Empty if the environment provides none.
    """

    action: str
    observation: str
    by_oracle: bool
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode.

    It ends in success, after `MAX_TURNS`, or where a detour left the oracle without a solution.
    """

    task: int
    first_observation: str
    exchanges: tuple[Exchange, ...]


def demonstrate(
    environment: Environment,
    task: int,
    random: Random,
    detour: Callable[[str], str] | None = None,
    detour_rate: float = 0.0,
) -> Demonstration:
    """Play `task` with the oracle's actions, some of them replaced by detours.

    No detour ends the episode.

    Args:
        environment: Environment to play in.
        random: Source of randomness for the choice of turns.
        detour: Maps the oracle's action to a replacement. None disables detours.
        detour_rate: Probability of a replacement per turn.

    Raises:
        OracleError: The oracle has no solution from the start.
    """
    first_observation = environment.reset(task)
    exchanges: list[Exchange] = []
    done = False
    while not done and len(exchanges) < MAX_TURNS:
        try:
            thought, right = environment.oracle_thought(), environment.oracle_action()
        except OracleError:
            if all(exchange.by_oracle for exchange in exchanges):
                raise
            break
        action = detour(right) if detour is not None and random.random() < detour_rate else right
        step = environment.step(action)
        if step.done and action != right:
            # A detour that ends the episode leaves nothing to recover, so it is undone.
            environment.reset(task)
            for exchange in exchanges:
                environment.step(exchange.action)
            action, step = right, environment.step(right)
        done = step.done
        exchanges.append(Exchange(action, step.observation, action == right, thought))
    return Demonstration(task, first_observation, tuple(exchanges))


class Demonstrator:
    """Endless sequence of numbered demonstrations.

    Each pass covers all tasks in its own order and with its own detours. Demonstration n does not
    depend on the process that plays it, so several processes can share the work. There are three
    equally likely kinds of detour:
    - The oracle's action with one word or number replaced.
    - Another action from the same task's solution.
    - An action from the solutions of a pool of tasks.
    """

    def __init__(self, world: World, tasks: Sequence[int], seed: int, detour_rate: float) -> None:
        """
        Args:
            world: The environment whose oracle demonstrates. Detours are disabled if the oracle
                cannot recover (`oracle_recovers = False`).
            tasks: Task indices to demonstrate.
            seed: Seed of the task order and the detours.
            detour_rate: Fraction of actions that are detours, in [0, 1].
        """
        self._tasks, self._seed = list(tasks), seed
        self._detour_rate = detour_rate if world.oracle_recovers else 0.0
        self._world = world
        self._environment = world.create()
        self._aside: Environment | None = None
        """Separate environment for playing solutions during an episode. Created on demand, as few
        are needed.
        """

    def play(self, number: int) -> Demonstration:
        """Play the demonstration with this number, from 0."""
        passes, place = divmod(number, len(self._tasks))
        task = self._order(passes)[place]
        random = Random(f"demonstration {self._seed} {number}")
        if not self._detour_rate:
            return demonstrate(self._environment, task, random)
        actions, words = self._pool

        def detour(right: str) -> str:
            choice = random.randrange(3)
            if choice == 0:
                return near_miss(right, words, random)
            return random.choice(self._solution(task) if choice == 1 else actions)

        return demonstrate(self._environment, task, random, detour, self._detour_rate)

    def close(self) -> None:
        """Release the environments."""
        self._environment.close()
        if self._aside is not None:
            self._aside.close()

    @cached_property
    def _pool(self) -> tuple[list[str], list[str]]:
        """Return the sorted actions of the pool's solutions, and their words."""
        actions = sorted(
            {action for task in self._order(0)[:POOL] for action in self._solution(task)}
        )
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
    """Return the action with one random word replaced. Numbers are replaced by numbers."""
    parts = action.split()
    place = random.randrange(len(parts))
    parts[place] = random.choice(
        [word for word in words if word.isdigit() == parts[place].isdigit()] or parts
    )
    return " ".join(parts)
