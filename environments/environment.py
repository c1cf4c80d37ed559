"""The interface between a simulated task and everything that plays it.

A world is independent of HTTP, tokens and training. It is a subclass of `World`, in this package or
in an installed package of its own. The server hosts any of them, and the registry finds them by
name.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from configs.rules import Rules
from environments.task_lists import named
from environments.tools import ANY_ACTION, Tool

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


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


Script = Callable[[str], Generator[str, str, None]]
"""Plays an episode from its first observation. See `World.scripts`."""


class Environment(ABC):
    """The environment of one session. It plays one episode after another, never two at once.

    The same task index and the same actions give byte-identical observations on every machine, in
    every process and regardless of other sessions.

    A subclass implements `reset`, `step` and `close`. The other members are optional. Subclasses
    may have further public attributes, e.g. for drawings. A name that resembles an optional member
    is refused as a misspelling.

    Attributes:
        offers: The optional members that the class implements.
    """

    __slots__ = ()
    offers: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in [each for each in vars(cls) if not each.startswith("_")]:
            near = difflib.get_close_matches(name, MEMBERS, 1, cutoff=0.8)
            if near and name not in MEMBERS:
                raise ContractError(
                    f"{cls.__name__} has an attribute {name!r}, which is close to {near[0]!r}; "
                    "rename it"
                )
        cls.offers = cls.offers | (OPTIONAL & set(vars(cls)))

    @abstractmethod
    def reset(self, index: int) -> str:
        """Begin the episode of task `index` and return its first observation.

        An episode in progress is abandoned.

        Raises:
            TaskIndexError: There is no such task.
        """

    @abstractmethod
    def step(self, action: str) -> Step:
        """Perform one action. Any text gets an observation, and no text raises an error.

        Raises:
            EpisodeOverError: The episode has not begun or has ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the session's resources. A second call does nothing."""

    def oracle_action(self) -> str:
        """Return the action of an expert with full knowledge of the state.

        Raises:
            OracleError: The expert has no solution from this state, or the world has no expert.
        """
        raise OracleError(f"{type(self).__name__} has no oracle")

    def oracle_thought(self) -> str:
        """Return the reason for `oracle_action` in a few words. Empty: there is none.

        It is the thought in demonstrations whose messages contain one.
        """
        return ""

    def state_key(self) -> str | None:
        """Return a key of the current state, quickly. None: the world reports no states.

        Two moments of a task have equal keys if the same can happen next, regardless of earlier
        observations. GiGPO compares turns that began in the same state. Without keys it identifies
        a state by the last observation.
        """
        return None

    @property
    def objective(self) -> str:
        """The task's goal, in the agent's words, without observations.

        The nearest-neighbour baseline searches by it.
        """
        raise NotOfferedError(f"{type(self).__name__} does not state its objective")

    def valid_actions(self) -> Sequence[str]:
        """Return the valid actions in this state: at least one, in a fixed order.

        They must not depend on the knowledge of `oracle_action`. The random baseline draws from
        them.
        """
        raise NotOfferedError(f"{type(self).__name__} does not list its valid actions")


OPTIONAL = frozenset({"oracle_action", "oracle_thought", "state_key", "objective", "valid_actions"})
"""The optional members of `Environment`."""
MEMBERS = OPTIONAL | {"reset", "step", "close", "offers"}
"""The members of `Environment`."""


class World(ABC):
    """A world that the server hosts: its tasks, its instruction and its sessions.

    A subclass defines `name`, `version`, `instruction`, `lists` and `create`. All other members
    have defaults. Public names that are not members are refused, on the class and on its instances.
    Names of a subclass's own begin with an underscore.

    Attributes:
        name: The registry's name, e.g. "textcraft".
        version: Changes whenever a task index would mean another task.
        instruction: Start of the agent's prompt: the rules and the format of the actions.
        rules: The rule set in play. A world that also supports AgentGym's rules sets it from an
            argument `rules` of its constructor, and `version` then differs between the two. See
            `configs.rules`.
        reward_range: Smallest and largest reward of one action. A reward outside it is an error of
            the world.
        success_score: Smallest score at which an episode that the world ended is a success.
        max_sessions: Most sessions per process. None: only the server's own limit holds.
        blocking: Whether steps take longer than about a millisecond. Each then runs in a thread.
        oracle_recovers: Whether the oracle has a solution after actions of others. Otherwise it
            knows one path, from the initial state.
        stand_in: States that the tasks stand in for a benchmark's own, and where those are
            described.
    """

    name: str
    version: str
    instruction: str
    rules: Rules = "ours"
    reward_range: tuple[float, float] = (0.0, 1.0)
    success_score: float = 1.0
    max_sessions: int | None = None
    blocking: bool = False
    oracle_recovers: bool = True
    stand_in: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in (*vars(cls), *vars(cls).get("__annotations__", ())):
            _check_attribute(cls, name)

    def __setattr__(self, name: str, value: object) -> None:
        _check_attribute(type(self), name)
        super().__setattr__(name, value)

    @property
    @abstractmethod
    def lists(self) -> Mapping[str, Sequence[int]]:
        """Task indices by list name, each list in a fixed order.

        A subclass defines it as a class attribute or as a property. The lists "train", "validation"
        and "test" must exist. Each world splits its tasks by some property, e.g. the goal, and no
        two of these lists share a value of it.
        """

    @abstractmethod
    def create(self) -> Environment:
        """Return a new session, before its first reset."""

    def tasks(self, name: str) -> Sequence[int]:
        """Return the task indices of a list.

        Raises:
            KeyError: No list has this name. The message lists the existing names.
        """
        return named(self.lists, name, self.name)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Scripts of a few lines, by name, which a trained policy should outperform.

        Every table of results shows their success. A script sees what an agent sees: it receives
        the first observation, yields an action, and is sent the next observation.
        """
        return {}

    @property
    def tools(self) -> Sequence[Tool]:
        """The actions as functions, for agents that call tools: by default one for any action."""
        return (ANY_ACTION,)

    @property
    def tool_lists(self) -> Sequence[Sequence[Tool]]:
        """The tools of each world of a mixture, in its order. A single world has one list."""
        return (self.tools,)

    def tag(self, index: int) -> str:
        """Return the kind of a task, e.g. "depth 2". Empty: the tasks have no kinds.

        Evaluations are broken down by it.
        """
        return ""

    @property
    def agentgym_tasks(self) -> Sequence[int]:
        """The tasks that the index of AgentGym's protocol counts: by default those of the splits."""
        return sorted(index for split in SPLITS for index in self.tasks(split))

    def prepare(self) -> None:  # noqa: B027 - optional
        """Do set-up work that can run before the first session needs it, e.g. start a browser."""

    def close(self) -> None:  # noqa: B027 - optional
        """Free what the sessions share. A second call does nothing."""


WORLD_MEMBERS = frozenset(name for name in (*vars(World), *World.__annotations__) if name[0] != "_")
"""The members of `World`."""


def _check_attribute(world: type[World], name: str) -> None:
    if name.startswith("_") or name in WORLD_MEMBERS:
        return
    near = difflib.get_close_matches(name, WORLD_MEMBERS, 1, cutoff=0.0)
    raise ContractError(
        f"{world.__name__} has an unknown attribute {name!r}; did you mean {near[0]!r}? "
        "The names of a world's own attributes begin with an underscore"
    )


def version_under(rules: Rules, version: str) -> str:
    """Return a world's version under these rules.

    Under AgentGym's rules the same index is a different task, so the version has a suffix.
    """
    return version if rules == "ours" else f"{version}-{rules}"


class WorldError(Exception):
    """Base class of the errors that a world raises."""


class WorldBusyError(WorldError):
    """The world has no room for another episode now. The client asks again later."""


class SettingsError(WorldError):
    """An environment variable that configures a world is missing or has an invalid value."""

    def __init__(self, variable: str, problem: str) -> None:
        """
        Args:
            problem: The value and the fix, e.g. "is 'x'; set it to a number".
        """
        super().__init__(f"{variable} {problem}")
        self.variable = variable


class ContractError(WorldError):
    """A class breaks the contract of `World` or `Environment`, e.g. by an unknown attribute."""


class UnknownWorldError(WorldError):
    """No world has this name, or several have it.

    Attributes:
        known: The names that can be used instead.
        nearest: The most similar of these names. None if none is similar.
    """

    def __init__(
        self, message: str, *, name: str = "", known: Sequence[str] = (), nearest: str | None = None
    ) -> None:
        super().__init__(message)
        self.name, self.known, self.nearest = name, tuple(known), nearest


class TaskIndexError(WorldError):
    """There is no task with this index."""


class EpisodeOverError(WorldError):
    """An action came before the first reset or after the episode's end."""


class NotOfferedError(WorldError):
    """The environment does not implement this optional member."""


class OracleError(WorldError):
    """The oracle has no solution from this state."""


class InvalidActionError(WorldError):
    """The text is not an action of the world. The message is the observation in reply."""
