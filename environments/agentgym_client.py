"""Plays on AgentGym's own environment servers, with the calls of `EnvironmentClient` (or on any server that speaks their dialect).

Their protocol has no turn numbers, so a step whose answer was lost is not repeated: it ends in UnreachableError and the episode has to be
begun anew. Their sessions have no leases: a session that is not closed stays on their server for ever.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from environments.environment import Step
from environments.errors import EnvironmentCallError, ServerFailedError, UnreachableError, error_of_status
from environments.http import FIRST_PAUSE_S, HttpClient, pause


@dataclass(frozen=True)
class Wire:
    """How one world's server is asked and read.

    Attributes:
        field: What requests call the session.
        create: The body of create.
        session: The session's number in create's reply.
        reset: The body of reset beside the session, from the task index.
        first: The first observation in reset's reply.
        score: What the policy has earned, in step's reply, before division by `full`.
        running: Whether `score` is the episode's total so far, not what the last action earned.
        full: The score of success.
        done: Whether the episode has ended, in step's reply.
    """

    field: str = "id"
    create: Callable[[], Any] = dict
    session: Callable[[Any], Any] = lambda reply: reply["id"]
    reset: Callable[[int], dict[str, Any]] = lambda index: {"data_idx": index}
    first: Callable[[Any], str] = lambda reply: reply["observation"]
    score: Callable[[Any], float] = lambda reply: reply["reward"]
    running: bool = False
    full: float = 1.0
    done: Callable[[Any], bool] = lambda reply: reply["done"]


WIRES: dict[str, Wire] = {
    "textcraft": Wire(create=lambda: {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}),
    "babyai": Wire(score=lambda reply: reply["score"], running=True),
    "sciworld": Wire(
        first=lambda reply: f"{reply['task_description']}\n{reply['observation']}",
        score=lambda reply: max(0.0, reply["score"]),  # -100 says that the task was failed
        running=True,
        full=100.0,
    ),
    "searchqa": Wire(
        field="env_idx",
        create=lambda: {"id": 0},
        session=lambda reply: reply,
        reset=lambda index: {"id": index},
        first=lambda reply: reply,
    ),
    "webarena": Wire(
        field="env_idx",
        session=lambda reply: reply["env_idx"],
        reset=lambda index: {"seed": 0, "idx": index},
        score=lambda reply: reply["reward"] if reply["terminated"] else 0.0,
        done=lambda reply: reply["terminated"] or reply["truncated"],
    ),
}


@dataclass(eq=False)
class Session:
    """An episode in progress: the server's number for it, the task, the turn that comes next and the score so far in [0, 1]."""

    number: int
    index: int
    turn: int = 0
    score: float = 0.0
    state_key: str = ""


class AgentGymClient:
    """Plays episodes on one server of AgentGym's. An async context manager, bound to the loop that enters it."""

    def __init__(self, url: str, world: str, *, deadline_s: float = 60.0, connections: int = 256) -> None:
        """
        Args:
            url: The server's base URL.
            world: Which of their worlds it hosts, a key of WIRES.
            deadline_s: Seconds that a call may take, unless it says otherwise.
            connections: Requests in flight at once.
        """
        if world not in WIRES:
            raise ValueError(f"world is {world!r}; AgentGym's dialect is known for: {', '.join(WIRES)}")
        self._url = url.rstrip("/")
        self._wire = WIRES[world]
        self._deadline_s = deadline_s
        self._connections = connections
        self._http: HttpClient | None = None

    async def __aenter__(self) -> Self:
        self._http = HttpClient(self._connections)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        assert self._http is not None
        await self._http.close()
        self._http = None

    async def start(self, index: int, *, deadline_s: float | None = None) -> tuple[Session, str]:
        """Opens a session and begins task `index`; returns the session and the first observation.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.start`.
        """
        deadline = self._deadline(deadline_s)
        created = await self._ask("create", self._wire.create(), deadline)
        session = Session(_read(self._wire.session, created, int), index)
        try:
            begun = await self._ask("reset", {**self._wire.reset(index), self._wire.field: session.number}, deadline)
            observation = _read(self._wire.first, begun, str)
            if observation == "TimeoutError":  # how their WebArena says that a reset failed
                raise ServerFailedError(f"{self._url} failed to reset to task {index}")
        except EnvironmentCallError:
            await self.close(session)
            raise
        return session, observation

    async def step(self, session: Session, action: str, *, deadline_s: float | None = None) -> Step:
        """Performs one action, once at most.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.step`. After any of them the state of the episode is not known.
        """
        reply = await self._ask("step", {"action": action, self._wire.field: session.number}, self._deadline(deadline_s))
        observation = _read(lambda answer: answer["observation"], reply, str)
        score = _read(self._wire.score, reply, int, float) / self._wire.full
        if not math.isfinite(score):
            raise ServerFailedError(f"{self._url} answered the score {score}")
        reward = score - session.score if self._wire.running else score
        session.score += reward
        session.turn += 1
        return Step(observation, reward, bool(_read(self._wire.done, reply, bool, int)))

    async def close(self, session: Session) -> None:
        """Ends the session as far as the server can be told; raises nothing."""
        try:
            await self._ask("close", {self._wire.field: session.number}, time.monotonic() + 5.0)
        except EnvironmentCallError:
            return

    def _deadline(self, deadline_s: float | None) -> float:
        return time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)

    async def _ask(self, operation: str, body: Any, deadline: float) -> Any:
        """Repeats only what never reached the server."""
        if self._http is None:
            raise RuntimeError("use the client as a context manager: async with AgentGymClient(...) as client")
        url = f"{self._url}/{operation}"
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                status, content = await self._http.exchange("POST", url, deadline, json.dumps(body).encode())
                break
            except UnreachableError as fault:
                if fault.sent:
                    raise
                pause_s = await pause(pause_s, deadline, fault)
        if status != 200:
            raise error_of_status(status, f"{url}: {status} {content[:200]!r}", of_session=True)
        try:
            reply = json.loads(content)
        except ValueError as unreadable:
            raise ServerFailedError(f"{url} answered what is no JSON: {content[:200]!r}") from unreadable
        if isinstance(reply, dict) and "error" in reply:  # their errors have status 200
            raise ServerFailedError(f"{url}: {reply['error']}")
        return reply


def _read(read: Callable[[Any], Any], reply: Any, *types: type) -> Any:
    """What `read` finds in the reply.

    Raises:
        ServerFailedError: It is not there or of another type.
    """
    try:
        value = read(reply)
    except (KeyError, TypeError) as missing:
        raise ServerFailedError(f"the answer lacks a field: {missing!r} in {str(reply)[:200]}") from missing
    if not isinstance(value, types):
        raise ServerFailedError(f"the answer has {value!r} where {' or '.join(type_.__name__ for type_ in types)} belongs")
    return value
