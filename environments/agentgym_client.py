"""Plays on AgentGym's own environment servers, with the calls of `EnvironmentClient` (or on any server that speaks their dialect).

Their protocol has no turn numbers, so a step whose answer was lost is not repeated: it ends in UnreachableError and the episode has to be
begun anew. Their sessions have no leases: a session that is not closed stays on their server for ever. Their servers tell no version: that
the tasks stay what they are is for who runs them to see to.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from environments.address import present_url
from environments.agentgym_wires import WIRES
from environments.environment import Step
from environments.errors import EnvironmentCallError, ServerFailedError, UnreachableError, WrongWorldError, error_of_status
from environments.http import FIRST_PAUSE_S, HttpClient, pause
from environments.protocol import in_range

AVOID_S = 2.0
"""A server that was not reached gets no new session for this long, if another can take it."""
CLOSE_S = 5.0


@dataclass(eq=False)
class Server:
    """One of several servers of the same world.

    Attributes:
        address: Its URL, or the file that holds it; see `present_url`.
        url: Its base URL, as it was last known.
        sessions: Ours on it.
        avoided_until: When it may get new sessions again (time.monotonic()).
    """

    address: str
    url: str
    sessions: int = 0
    avoided_until: float = 0.0


@dataclass(eq=False)
class Session:
    """An episode in progress: the server's number for it, the task, the turn that comes next and the score so far, of which 1 is full."""

    number: int
    index: int
    server: Server
    turn: int = 0
    score: float = 0.0
    state_key: str = ""


class AgentGymClient:
    """Plays episodes on servers of AgentGym's. An async context manager, bound to the loop that enters it."""

    def __init__(self, urls: Sequence[str], world: str, *, deadline_s: float = 60.0, connections: int = 256) -> None:
        """
        Args:
            urls: Base URLs of servers of one world, or files that hold them (see `present_url`); a new session goes to the one
                that has the fewest of ours.
            world: Which of their worlds they host, a key of WIRES.
            deadline_s: Seconds that a call may take, unless it says otherwise.
            connections: Requests in flight at once.
        """
        if world not in WIRES:
            raise ValueError(f"the world is {world!r}; AgentGym's dialect is known for: {', '.join(WIRES)}")
        if not urls:
            raise ValueError("urls is empty: name at least one environment server")
        self._servers = [Server(url, present_url(url)) for url in urls]
        self._world = world
        self._wire = WIRES[world]
        self._deadline_s = deadline_s
        self._connections = connections
        self._http: HttpClient | None = None
        self._sessions: set[Session] = set()
        self._abandoned: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._http = HttpClient(self._connections)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the sessions still open, as far as the servers can be reached, and the connections."""
        assert self._http is not None
        try:
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=CLOSE_S)
            await asyncio.gather(*(self.close(session) for session in list(self._sessions)))
        finally:
            for task in self._abandoned:
                task.cancel()
            await self._http.close()
            self._http = None

    async def check(self) -> None:
        """Asks each server which world it hosts.

        Raises:
            EnvironmentCallError: One does not answer; WrongWorldError: one hosts another world.
        """
        deadline = self._deadline(None)
        await asyncio.gather(*(self._check(server, deadline) for server in self._servers))

    async def start(self, index: int, *, lease_s: float = 0.0, deadline_s: float | None = None) -> tuple[Session, str]:
        """Opens a session and begins task `index`; returns the session and the first observation.

        If the call is cancelled, the session that may come of it is closed in the background.

        Args:
            index: The task.
            lease_s: Of no effect: their sessions have no leases.
            deadline_s: Seconds that this call may take.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.start`.
        """
        starting = asyncio.ensure_future(self._start(index, self._deadline(deadline_s)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            undoing = asyncio.ensure_future(self._undo(starting))
            self._abandoned.add(undoing)
            undoing.add_done_callback(self._abandoned.discard)
            raise

    async def step(self, session: Session, action: str, *, deadline_s: float | None = None) -> Step:
        """Performs one action, once at most.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.step`. After any of them the state of the episode is not known.
        """
        body = {"action": self._wire.sent(action), self._wire.field: session.number}
        reply = await self._ask(session.server, "step", body, self._deadline(deadline_s))
        observation = _read(lambda answer: answer["observation"], reply, str)
        score = _read(self._wire.score, reply, int, float) / self._wire.full
        reward = score - session.score if self._wire.running else score
        if not in_range(reward, self._wire.reward_range):
            low, high = self._wire.reward_range
            raise ServerFailedError(f"{session.server.url} answered the reward {reward}; {self._world} has {low:g} to {high:g}")
        session.score += reward
        session.turn += 1
        return Step(observation, reward, bool(_read(self._wire.done, reply, bool, int)), refused=None)

    async def close(self, session: Session) -> None:
        """Ends the session as far as the server can be told; raises nothing."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        session.server.sessions -= 1
        try:
            await self._ask(session.server, "close", {self._wire.field: session.number}, time.monotonic() + CLOSE_S)
        except EnvironmentCallError:
            return

    async def _start(self, index: int, deadline: float) -> tuple[Session, str]:
        now = time.monotonic()
        server = min(self._servers, key=lambda one: (one.avoided_until > now, one.sessions))
        server.sessions += 1
        try:
            await self._check(server, deadline)  # it may be another's since the last session was opened
            created = await self._ask(server, "create", self._wire.create(), deadline)
            session = Session(_read(self._wire.session, created, int), index, server)
        except BaseException as fault:
            server.sessions -= 1
            if isinstance(fault, UnreachableError):
                server.avoided_until = time.monotonic() + AVOID_S
                server.url = present_url(server.address, server.url)
            raise
        self._sessions.add(session)
        try:
            begun = await self._ask(server, "reset", {**self._wire.reset(index), self._wire.field: session.number}, deadline)
            observation = _read(self._wire.first, begun, str)
            if observation == "TimeoutError":  # how their WebArena says that a reset failed
                raise ServerFailedError(f"{server.url} failed to reset to task {index}")
        except EnvironmentCallError:
            await self.close(session)
            raise
        return session, observation

    async def _undo(self, starting: asyncio.Future[tuple[Session, str]]) -> None:
        try:
            session, _ = await starting
        except EnvironmentCallError:
            return
        await self.close(session)

    async def _check(self, server: Server, deadline: float) -> None:
        greeting = await self._exchange("GET", f"{server.url}/", None, deadline)
        if greeting != self._wire.greeting:
            known = [f"{name} of AgentGym" for name, wire in WIRES.items() if wire.greeting == greeting]
            hosted = " or ".join(known) or f"what greets with {str(greeting)[:80]!r}"
            raise WrongWorldError(f"{server.url} hosts {hosted}, but {self._world} is to be played; name a server of it")

    def _deadline(self, deadline_s: float | None) -> float:
        return time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)

    async def _ask(self, server: Server, operation: str, body: Any, deadline: float) -> Any:
        url = f"{server.url}/{operation}"
        reply = await self._exchange("POST", url, json.dumps(body).encode(), deadline)
        if isinstance(reply, dict) and "error" in reply:  # their errors have status 200
            raise ServerFailedError(f"{url}: {reply['error']}")
        return reply

    async def _exchange(self, method: str, url: str, body: bytes | None, deadline: float) -> Any:
        """Repeats only what never reached the server."""
        if self._http is None:
            raise RuntimeError("use the client as a context manager: async with AgentGymClient(...) as client")
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                status, content = await self._http.exchange(method, url, deadline, body)
                break
            except UnreachableError as fault:
                if fault.sent:
                    raise
                pause_s = await pause(pause_s, deadline, fault)
        if status != 200:
            raise error_of_status(status, f"{url}: {status} {content[:200]!r}", of_session=method == "POST")
        try:
            return json.loads(content)
        except ValueError as unreadable:
            raise ServerFailedError(f"{url} answered what is no JSON: {content[:200]!r}") from unreadable


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
