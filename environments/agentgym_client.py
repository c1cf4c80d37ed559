"""Client of AgentGym's own environment servers, with the interface of `EnvironmentClient`.

It works with any server that speaks their protocol. Four properties of the protocol matter:

- It has no turn numbers. A step whose answer was lost is not repeated but raises UnreachableError,
  and the episode must be restarted.
- Sessions have no leases. A session that is not closed stays on the server for ever.
- A restarted server numbers its sessions from 0 again. No request of a former session is sent once
  this client has a newer session of the same number.
- Servers report no version. Their operator must make sure that the tasks do not change.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from environments.agentgym_wires import WIRES
from environments.calls import Replica
from environments.environment import Step
from environments.errors import (
    BusyError,
    EnvironmentCallError,
    ServerFailedError,
    SessionLostError,
    UnreachableError,
    WrongWorldError,
    error_of_status,
)
from environments.http import FIRST_PAUSE_S, HttpClient, pause
from environments.protocol import in_range

CLOSE_S = 5.0


@dataclass(eq=False)
class Session:
    """An episode in progress.

    Attributes:
        number: The server's id of the session.
        index: The task.
        server: The server that holds the session.
        turn: Number of the next turn.
        score: Score so far. 1 is full.
        state_key: Always empty: the servers report no state.
    """

    number: int
    index: int
    server: Replica
    turn: int = 0
    score: float = 0.0
    state_key: str = ""

    @property
    def place(self) -> tuple[Replica, int]:
        """Its server and number. After a restart of the server another session may have them."""
        return self.server, self.number


class AgentGymClient:
    """Play episodes on AgentGym's servers.

    It is an async context manager, bound to the event loop that enters it.
    """

    def __init__(
        self, urls: Sequence[str], world: str, *, deadline_s: float = 60.0, connections: int = 256
    ) -> None:
        """
        Args:
            urls: Base URLs of servers of one world, or files that hold them (see `present_url`). A
                new session goes to the server with the fewest sessions of this client.
            world: The world that they host, a key of WIRES.
            deadline_s: Time limit of a call in seconds.
            connections: Most requests in flight at once.

        Raises:
            ValueError: The protocol is unknown for this world, or `urls` is empty.
        """
        if world not in WIRES:
            raise ValueError(
                f"the world is {world!r}; AgentGym's dialect is known for: {', '.join(WIRES)}"
            )
        if not urls:
            raise ValueError("urls is empty: name at least one environment server")
        self._servers = [Replica(url) for url in urls]
        self._world = world
        self._wire = WIRES[world]
        self._deadline_s = deadline_s
        self._connections = connections
        self._http: HttpClient | None = None
        self._sessions: dict[tuple[Replica, int], Session] = {}
        self._abandoned: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._http = HttpClient(self._connections)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the open sessions on all reachable servers, then the connections."""
        assert self._http is not None
        try:
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=CLOSE_S)
            await asyncio.gather(
                *(self.close(session) for session in list(self._sessions.values()))
            )
        finally:
            for task in self._abandoned:
                task.cancel()
            await self._http.close()
            self._http = None

    async def check(self) -> None:
        """Check that each server hosts the expected world.

        Raises:
            EnvironmentCallError: A server does not answer.
            WrongWorldError: A server hosts another world.
        """
        deadline = self._deadline()
        await asyncio.gather(*(self._check(server, deadline) for server in self._servers))

    async def start(self, index: int, *, lease_s: float = 0.0) -> tuple[Session, str]:
        """Open a session and begin task `index`. Return the session and the first observation.

        If the call is cancelled, a session that it still opens is closed in the background.

        Args:
            index: The task.
            lease_s: Ignored: these servers' sessions have no leases.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.start`.
        """
        starting = asyncio.ensure_future(self._start(index, self._deadline()))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._in_background(self._undo(starting))
            raise

    async def step(self, session: Session, action: str) -> Step:
        """Perform one action, at most once.

        Raises:
            EnvironmentCallError: See `EnvironmentClient.step`. After any of them the state of the
                episode is unknown.
        """
        body = {"action": self._wire.sent(action), self._wire.field: session.number}
        reply = await self._ask(session.server, "step", body, self._deadline(), session)
        observation = _read(lambda answer: answer["observation"], reply, str)
        wire = self._wire
        score = _read(lambda answer: wire.score(answer) / wire.full, reply, float)
        reward = score - session.score if self._wire.running else score
        if not in_range(reward, self._wire.reward_range):
            low, high = self._wire.reward_range
            raise ServerFailedError(
                f"{session.server.url} sent the reward {reward}, but {self._world} has rewards "
                f"from {low:g} to {high:g}"
            )
        session.score += reward
        session.turn += 1
        return Step(
            observation, reward, bool(_read(self._wire.done, reply, bool, int)), refused=None
        )

    async def keep(self, session: Session) -> None:
        """Do nothing: these servers' sessions have no leases."""

    async def close(self, session: Session) -> None:
        """End the session if the server can be reached. Never raises an EnvironmentCallError.

        If the call is cancelled, the session is still closed in the background.
        """
        if self._sessions.get(session.place) is not session:
            return
        del self._sessions[session.place]
        session.server.sessions -= 1
        body, deadline = {self._wire.field: session.number}, time.monotonic() + CLOSE_S

        async def close() -> None:
            with suppress(EnvironmentCallError):
                await self._ask(session.server, "close", body, deadline, session)

        await asyncio.shield(self._in_background(close()))

    async def _start(self, index: int, deadline: float) -> tuple[Session, str]:
        now = time.monotonic()
        server = min(self._servers, key=lambda one: (one.avoided_until > now, one.sessions))
        server.sessions += 1
        try:
            # The hosted world may have changed since the last session.
            await self._check(server, deadline)
            created = await self._ask(server, "create", self._wire.create(), deadline)
            session = Session(_read(self._wire.session, created, int), index, server)
        except BaseException as fault:
            server.sessions -= 1
            if isinstance(fault, UnreachableError):
                server.avoid()
            raise
        if session.place in self._sessions:  # the server has restarted
            server.sessions -= 1
        self._sessions[session.place] = session
        try:
            begun = await self._ask(
                server,
                "reset",
                {**self._wire.reset(index), self._wire.field: session.number},
                deadline,
                session,
            )
            observation = _read(self._wire.first, begun, str)
            if observation == "TimeoutError":  # AgentGym's WebArena reports a failed reset this way
                raise ServerFailedError(f"{server.url} failed to reset to task {index}")
        except EnvironmentCallError:
            await self.close(session)
            raise
        return session, observation

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        return task

    async def _undo(self, starting: asyncio.Future[tuple[Session, str]]) -> None:
        try:
            session, _ = await starting
        except EnvironmentCallError:
            return
        await self.close(session)

    async def _check(self, server: Replica, deadline: float) -> None:
        answer = await self._exchange("GET", server, "", None, deadline)
        # Servers by FastAPI send a JSON string, and that of WebArena plain text.
        greeting = answer.decode("utf-8", "replace").strip().strip('"')
        if greeting != self._wire.greeting:
            known = [
                f"{name} of AgentGym" for name, wire in WIRES.items() if wire.greeting == greeting
            ]
            hosted = " or ".join(known) or f"an unknown server that answers {greeting[:80]!r}"
            raise WrongWorldError(
                f"{server.url} hosts {hosted}, but environment.name is {self._world}. Set "
                "AGENTGYM_ENVIRONMENT_URLS to a server of it",
                field="environment.name",
                url=server.url,
                hosted=hosted,
                expected=self._world,
            )

    def _deadline(self) -> float:
        return time.monotonic() + self._deadline_s

    async def _ask(
        self,
        server: Replica,
        operation: str,
        body: Any,
        deadline: float,
        session: Session | None = None,
    ) -> Any:
        sent = json.dumps(body).encode()
        content = await self._exchange("POST", server, operation, sent, deadline, session)
        url = f"{server.url}/{operation}"
        try:
            reply = json.loads(content)
        except (ValueError, RecursionError) as unreadable:
            raise ServerFailedError(
                f"{url} sent an answer that is not JSON: {content[:200]!r}"
            ) from unreadable
        # AgentGym's servers report errors with status 200.
        if isinstance(reply, dict) and "error" in reply:
            raise ServerFailedError(f"{url}: {reply['error']}")
        return reply

    async def _exchange(
        self,
        method: str,
        server: Replica,
        path: str,
        body: bytes | None,
        deadline: float,
        session: Session | None = None,
    ) -> bytes:
        """Send a request and return its answer.

        Retry only requests that never reached the server, and those before the first action that a
        full server refused.

        Raises:
            SessionLostError: The session of the request is closed, or a newer one has its number.
        """
        if self._http is None:
            raise RuntimeError(
                "use the client as a context manager: async with AgentGymClient(...) as client"
            )
        pause_s, url = FIRST_PAUSE_S, f"{server.url}/{path}"
        while True:
            if session is not None:  # the server may have restarted during a pause
                holder = self._sessions.get(session.place)
                if holder is not session and not (path == "close" and holder is None):
                    raise SessionLostError(
                        f"{url}: session {session.number} is closed, or the server has restarted "
                        "and given its number to another session"
                    )
            try:
                status, content = await self._http.exchange(
                    method, url, deadline, body, server.login
                )
                if status == 200:
                    return content
                raise error_of_status(
                    status, f"{url}: {status} {content[:200]!r}", of_session=method == "POST"
                )
            except BusyError as fault:
                if path == "step":  # a proxy may have passed it on
                    raise
                pause_s = await pause(pause_s, deadline, fault)
            except UnreachableError as fault:
                if fault.sent:
                    raise
                pause_s = await pause(pause_s, deadline, fault)


def _read(read: Callable[[Any], Any], reply: Any, *types: type) -> Any:
    """Extract a value from the reply. Lone surrogates in a text become question marks.

    Raises:
        ServerFailedError: The value is missing or has another type.
    """
    try:
        value = read(reply)
    except (KeyError, TypeError, OverflowError) as missing:
        raise ServerFailedError(
            f"the answer lacks a field: {missing!r} in {str(reply)[:200]}"
        ) from missing
    if not isinstance(value, types):
        raise ServerFailedError(
            f"the answer has {value!r} in place of a "
            f"{' or '.join(type_.__name__ for type_ in types)}"
        )
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
