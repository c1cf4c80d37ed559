"""The interface between a simulated task and everything that plays it.

A world is independent of HTTP, tokens and training. It is a folder of this package that offers one
object satisfying `World`. The server hosts any of them, and the registry finds them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from configs.rules import Rules

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one action.

    Attributes:
        observation: The agent's next observation.
        reward: Reward of this action, within the world's `reward_range`. The rewards of an episode
            add up to its score in [0, 1]. 1 is success.
        done: Whether the world has ended the episode.
        refused: Whether the world rejected the action and therefore changed nothing, e.g. an
            unknown command, a wrong format, or an action that is impossible now. An action
            performed without an effect is not refused. None if the server does not report it.
    """

    observation: str
    reward: float
    done: bool
    refused: bool | None = False


class Environment(Protocol):
    """The environment of one session. It plays one episode after another, never two at once.

    The same task index and the same actions give byte-identical observations on every machine, in
    every process and regardless of other sessions.

    Optional members:

    - `state_key() -> str`: names the current state, and is fast. Two moments of a task have equal
      keys if the same can happen next, regardless of earlier observations. GiGPO compares turns
      that began in the same state. Without keys it identifies a state by the last observation
      alone.
    - `oracle_thought() -> str`: the reason for `oracle_action` in a few words. It is the thought in
      demonstrations whose messages contain one.
    - The members of `EnumerableEnvironment`.
    """

    def reset(self, index: int) -> str:
        """Begin the episode of task `index` and return its first observation.

        An episode in progress is abandoned.

        Raises:
            TaskIndexError: There is no such task.
        """
        ...

    def step(self, action: str) -> Step:
        """Perform one action. Any text gets an observation, and no text raises an error.

        Raises:
            EpisodeOverError: The episode has not begun or has ended.
        """
        ...

    def oracle_action(self) -> str:
        """Return the action of an expert with full knowledge of the state.

        Raises:
            OracleError: The expert has no solution from this state.
        """
        ...

    def close(self) -> None:
        """Free the session's resources. A second call does nothing."""
        ...


class EnumerableEnvironment(Environment, Protocol):
    """An environment that lists its valid actions and states its objective.

    The baselines "random" and "nearest-neighbour" use both.
    """

    @property
    def objective(self) -> str:
        """The task's goal, in the agent's words, without observations."""
        ...

    def valid_actions(self) -> Sequence[str]:
        """Return the valid actions in this state: at least one, in a fixed order.

        They must not depend on the knowledge of `oracle_action`.
        """
        ...


class AwaitedEnvironment(Environment, Protocol):
    """An environment that waits for another process.

    The server's event loop awaits many of them at once without a thread each.
    """

    def reset_awaited(self, index: int) -> Awaitable[str]:
        """Perform `reset` on the running event loop."""
        ...

    def step_awaited(self, action: str) -> Awaitable[Step]:
        """Perform `step` on the running event loop."""
        ...


class World(Protocol):
    """A world that the server hosts: its tasks, its instruction and its sessions.

    Optional members that the server uses:

    - `blocking = True`: its steps take long, so each runs in a thread.
    - `awaited = True`: its environments are `AwaitedEnvironment`s, and their `close` does not wait.
    - `stand_in`: states that its tasks stand in for a benchmark's own, and where those are
      described.
    - `max_sessions`: most sessions per process.
    - `prepare()`: set-up work that can run before the first session needs it.
    - `tag(index) -> str`: the kind of a task, e.g. "depth 2". Evaluations are broken down by it.
    - `rules`: an attribute and a constructor argument. The world also supports AgentGym's rules,
      see `configs.rules`. `version` must then differ between the two.
    - `oracle_recovers = False`: its expert knows only one path, from the initial state.
    - `success_score`: smallest score at which an episode that the world ended is a success.
      Default: 1.
    - `reward_range`: smallest and largest reward of one action. Default: (0, 1). A reward outside
      it is an error of the world.
    - `agentgym_tasks`: the tasks that the index of AgentGym's protocol counts. Default: those of
      the splits.
    - `lists`: name to task indices of every task list, if they depend on data.

    Its package may define `TASK_LISTS`, the names and descriptions of the lists. A wrong name in a
    recipe is then rejected before anything is built.

    Attributes:
        name: The registry's name, e.g. "textcraft".
        version: Changes whenever a task index would mean another task.
        instruction: Start of the agent's prompt: the rules and the format of the actions.
    """

    name: str
    version: str
    instruction: str

    def create(self) -> Environment:
        """Return a new session, before its first reset."""
        ...

    def tasks(self, name: str) -> Sequence[int]:
        """Return the task indices of a split or of another named list, in a fixed order.

        Splits are disjoint in a property that each world defines.

        Raises:
            KeyError: No list has this name. The message lists the existing names.
        """
        ...


def version_under(rules: Rules, version: str) -> str:
    """Return a world's version under these rules.

    Under AgentGym's rules the same index is a different task, so the version has a suffix.
    """
    return version if rules == "ours" else f"{version}-{rules}"


def reward_range_of(world: World) -> tuple[float, float]:
    """Return the smallest and the largest reward of one action, as declared by the world."""
    low, high = getattr(world, "reward_range", (0.0, 1.0))
    return float(low), float(high)


class WorldError(Exception):
    """Base class of the errors that a world raises."""


class UnknownWorldError(WorldError):
    """No world has this name."""


class TaskIndexError(WorldError):
    """There is no task with this index."""


class EpisodeOverError(WorldError):
    """An action came before the first reset or after the episode's end."""


class OracleError(WorldError):
    """The oracle has no solution from this state."""


class InvalidActionError(WorldError):
    """The text is not an action of the world. The message is the observation in reply."""
