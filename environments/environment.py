"""What a world is: the contract between a simulated task and everything that plays it.

A world knows nothing of HTTP, of tokens or of training. It is a folder of this package that offers one object satisfying
`World`; the server hosts any of them, the registry finds them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from configs.rules import Rules

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Step:
    """What answers one action.

    Attributes:
        observation: What the agent sees next.
        reward: What this action earned, within the world's `reward_range`. The rewards of an episode add up to its score in
            [0, 1]; 1 is success.
        done: Whether the world has ended the episode.
        refused: Whether the world did not carry out the action and changed nothing because of it: an unknown command, a wrong
            form, something impossible now. An action that is carried out without an effect is not refused. None where the
            server does not say.
    """

    observation: str
    reward: float
    done: bool
    refused: bool | None = False


class Environment(Protocol):
    """One session's world: it plays one episode after another, never two at once.

    The same task index and the same actions give byte-identical observations on every machine, in every process and
    whatever other sessions do.

    What an environment may have besides: `state_key() -> str`, quick to tell, names the state that it is in: two moments of a task have
    equal keys where the same can happen next, whatever the agent has been shown. GiGPO compares turns that began in the same
    state; without keys it knows a state by the last observation alone. `oracle_thought() -> str` says in few words what `oracle_action`
    follows from: what demonstrations think where messages hold a thought. And the method of `EnumerableEnvironment`.
    """

    def reset(self, index: int) -> str:
        """Begins the episode of task `index`, whatever was going on, and returns its first observation.

        Raises:
            TaskIndexError: There is no such task.
        """
        ...

    def step(self, action: str) -> Step:
        """Performs one action. Any text is answered with an observation; none raises.

        Raises:
            EpisodeOverError: The episode has not begun or has ended.
        """
        ...

    def oracle_action(self) -> str:
        """The action that an expert with full knowledge of the state would take now.

        Raises:
            OracleError: The expert has no solution from here.
        """
        ...

    def close(self) -> None:
        """Frees what the session holds. A second call does nothing."""
        ...


class EnumerableEnvironment(Environment, Protocol):
    """An environment that can list what may be done, and say what for; the baselines "random" and "twin" go by that."""

    @property
    def objective(self) -> str:
        """What the task asks for, in the agent's words, without what is seen."""
        ...

    def valid_actions(self) -> Sequence[str]:
        """The actions that the world would perform now: at least one, in a fixed order, free of `oracle_action`'s knowledge."""
        ...


class AwaitedEnvironment(Environment, Protocol):
    """An environment that waits for another process, which the server's event loop can do for many at once without a thread."""

    def reset_awaited(self, index: int) -> Awaitable[str]:
        """As `reset`, on the running event loop."""
        ...

    def step_awaited(self, action: str) -> Awaitable[Step]:
        """As `step`, on the running event loop."""
        ...


class World(Protocol):
    """One of the worlds that the server hosts: its tasks, its instruction, and the sessions that it makes.

    What a world may have besides, which the server heeds: `blocking = True` (its steps take long, each is given a thread), `awaited = True`
    (its environments are `AwaitedEnvironment`s, and their `close` does not wait),
    `stand_in` (says that its tasks stand in for a benchmark's own, and where those are described),
    `max_sessions` (how many a process can bear), `prepare()` (what can be done before the first session asks for it), and
    `tag(index) -> str` (the kind of a task, e.g. "depth 2", by which evaluations are broken down),
    `rules` (an attribute and an argument of the class: the world can also be played under AgentGym's rules, see `configs.rules`; `version`
    must then tell the two apart), `oracle_recovers = False` (its expert knows one way, from the start alone),
    `success_score` (the score from which an episode that the world ended is a success; default 1),
    `reward_range` (the least and the greatest reward of one action; default (0, 1); a reward outside it is a fault of the world),
    `agentgym_tasks` (the tasks that the index of AgentGym's dialect counts through; default: those of the splits), and
    `lists` (name to task indices of every task list, where they depend on data). Its package may say in `TASK_LISTS` what the lists are
    called and what each holds: a wrong name in a recipe is then refused before anything is built.

    Attributes:
        name: The registry's name, e.g. "textcraft".
        version: Changes whenever the same task index would mean another task.
        instruction: What an agent is told before its first observation: the rules and the form of the actions.
    """

    name: str
    version: str
    instruction: str

    def create(self) -> Environment:
        """A new session, before its first reset."""
        ...

    def tasks(self, name: str) -> Sequence[int]:
        """The task indices of a split or of another named list, in a fixed order. Splits are disjoint by what matters in this world.

        Raises:
            KeyError: No list has this name; the message names those that exist.
        """
        ...


def version_under(rules: Rules, version: str) -> str:
    """The version of a world that is played under these rules: under AgentGym's, the same task is another."""
    return version if rules == "ours" else f"{version}-{rules}"


def reward_range_of(world: World) -> tuple[float, float]:
    """The least and the greatest reward of one action, as the world declares it."""
    low, high = getattr(world, "reward_range", (0.0, 1.0))
    return float(low), float(high)


class WorldError(Exception):
    """Base of what a world raises."""


class UnknownWorldError(WorldError):
    """No world is registered under that name."""


class TaskIndexError(WorldError):
    """There is no task of that index."""


class EpisodeOverError(WorldError):
    """An action came before the first reset or after the end."""


class OracleError(WorldError):
    """The oracle has no solution from this state."""


class InvalidActionError(WorldError):
    """A text that is no action of the world; the message is the observation that answers it."""
