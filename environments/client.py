"""The asynchronous client of environment servers, used by whoever plays episodes.

Everything is retried while a server is unreachable or busy, until the call's deadline: steps carry their turn, so that a repeated one
is answered, not performed, again. What cannot be mended by waiting is raised as one of the types under `EnvironmentCallError`; a fault
never turns into an observation or a reward.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from environments.calls import Calls, Replica
from environments.environment import Step
from environments.errors import (
    BusyError,
    DeadlineExceededError,
    EnvironmentCallError,
    RefusedError,
    ServerFailedError,
    SessionLostError,
    UnreachableError,
    WrongWorldError,
)
from environments.protocol import CloseItem, CreateItem, Health, StepItem, TaskList, WorldInfo
from environments.request_batcher import RequestBatcher

__all__ = [
    "BusyError",
    "DeadlineExceededError",
    "EnvironmentCallError",
    "EnvironmentClient",
    "RefusedError",
    "ServerFailedError",
    "Session",
    "SessionLostError",
    "UnreachableError",
    "WrongWorldError",
]

log = logging.getLogger(__name__)

ROOM = 10_000.0
"""Taken for the room of a server that does not tell it."""
CLOSE_S = 5.0
HEALTH_S = 5.0


@dataclass(eq=False)
class Session:
    """An episode in progress.

    Attributes:
        id: The server's id.
        index: The task.
        turn: The number of the next action.
        state_key: The world's digest of the state that the episode is in; empty where it tells none.
    """

    id: str
    index: int
    replica: Replica
    turn: int = field(default=0)
    state_key: str = ""


class EnvironmentClient:
    """Plays episodes on one or more servers of the same world. An async context manager, bound to the loop that enters it."""

    def __init__(self, urls: Sequence[str], *, expected: str = "", deadline_s: float = 60.0, connections: int = 256) -> None:
        """
        Args:
            urls: Base URLs of servers of one world, or files that hold them (see `present_url`); a new session goes to the one
                with the most room left.
            expected: `WorldInfo.identity` of the world: no session is opened of another one or of another version. Empty: of any.
            deadline_s: Seconds that a call may take with all its retries, unless it says otherwise.
            connections: Requests in flight at once; further calls wait for their turn.
        """
        if not urls:
            raise ValueError("urls is empty: name at least one environment server")
        self._calls = Calls(urls, deadline_s, connections)
        self._replicas = self._calls.replicas
        self._expected = expected
        self._sessions: dict[str, Session] = {}
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the sessions still open, as far as the servers can be reached, and the connections."""
        try:
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=1.0)
            await asyncio.gather(*(self._close_all(replica) for replica in self._replicas))
        finally:
            for task in self._abandoned:
                task.cancel()
            await self._calls.close()

    async def start(self, index: int, *, lease_s: float = 600.0, deadline_s: float | None = None) -> tuple[Session, str]:
        """Opens a session and begins task `index`, in one request; returns the session and the first observation.

        If the call is cancelled, the session that may come of it is closed in the background.

        Args:
            index: The task.
            lease_s: Seconds that the session outlives its last request: more than the longest pause between two actions.
            deadline_s: Seconds that this call may take.

        Raises:
            EnvironmentCallError: UnreachableError, DeadlineExceededError, BusyError, ServerFailedError, or
                RefusedError (there is no such task).
        """
        starting = asyncio.ensure_future(self._start(index, lease_s, deadline_s))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._in_background(self._undo(starting))
            raise

    async def step(self, session: Session, action: str, *, deadline_s: float | None = None) -> Step:
        """Performs one action.

        After a cancelled or failed step the session can be asked again with the same action, or closed.

        Raises:
            EnvironmentCallError: UnreachableError, DeadlineExceededError, SessionLostError, ServerFailedError, or
                RefusedError (the episode is over).
        """
        item = StepItem(session.id, session.turn, action)
        try:
            reply = await self._calls.perform(lambda: session.replica, "step", item, deadline_s)
        except (SessionLostError, ServerFailedError):
            self._forget(session)
            raise
        if reply.observation is None or reply.reward is None or reply.done is None or not math.isfinite(reply.reward):
            raise ServerFailedError(f"{session.replica.url} answered a step without a valid observation, reward and done: {reply}")
        if reply.turn != session.turn:
            raise ServerFailedError(f"{session.replica.url} answered turn {reply.turn} when asked for turn {session.turn}")
        session.turn += 1
        session.state_key = reply.state_key
        return Step(reply.observation, reply.reward, reply.done)

    async def close(self, session: Session) -> None:
        """Ends the session. Raises nothing: where the server cannot be told, the lease ends it."""
        self._forget(session)
        try:
            await self._calls.perform(lambda: session.replica, "close", CloseItem(session.id), CLOSE_S)
        except SessionLostError:
            pass
        except EnvironmentCallError as fault:
            log.warning("could not close a session; its lease will end it: %s", fault)

    async def health(self) -> dict[str, Health | EnvironmentCallError]:
        """What each server says of itself within some seconds, or why it did not, by URL. Nothing is retried."""
        deadline = time.monotonic() + HEALTH_S
        asked = (self._calls.read_once(replica, "/health", Health, deadline) for replica in self._replicas)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        result: dict[str, Health | EnvironmentCallError] = {}
        for replica, answer in zip(self._replicas, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, EnvironmentCallError):
                raise answer
            result[replica.url] = answer
        return result

    async def world(self) -> WorldInfo:
        """The world that all the servers host.

        Raises:
            EnvironmentCallError: A server does not answer; WrongWorldError: they host different worlds or versions.
        """
        (first, told), *others = (await self.worlds()).items()
        for url, world in others:
            if world.identity != told.identity:
                raise WrongWorldError(f"{url} hosts {world.identity}, but {first} hosts {told.identity}: all must host the same")
        return told

    async def worlds(self) -> dict[str, WorldInfo]:
        """The world that each server hosts, by URL.

        Raises:
            EnvironmentCallError: A server does not answer.
        """
        worlds = await asyncio.gather(*(self._calls.read(replica, "/v1/world", WorldInfo) for replica in self._replicas))
        return {replica.url: world for replica, world in zip(self._replicas, worlds, strict=True)}

    async def tasks(self, name: str) -> list[int]:
        """The task indices of a split or of another named list, in their fixed order.

        Raises:
            EnvironmentCallError: A server does not answer; RefusedError: the world has no such list.
        """
        return (await self._calls.read(self._calls.roomiest(), f"/v1/tasks?split={quote(name)}", TaskList)).tasks

    async def tags(self, name: str) -> dict[int, str]:
        """The kind of each task of a list, e.g. "depth 2", by its index; empty where the world tells none.

        Raises:
            EnvironmentCallError: A server does not answer; RefusedError: the world has no such list.
        """
        found = await self._calls.read(self._calls.roomiest(), f"/v1/tasks?split={quote(name)}&tags=1", TaskList)
        return dict(zip(found.tasks, found.tags, strict=True)) if found.tags else {}

    async def _start(self, index: int, lease_s: float, deadline_s: float | None) -> tuple[Session, str]:
        asked: list[Replica] = []

        def choose() -> Replica:
            if asked:
                asked[-1].sessions -= 1
            asked.append(self._calls.roomiest())
            asked[-1].sessions += 1  # counted while it is being opened, so that starts at one moment spread
            return asked[-1]

        try:
            reply = await self._calls.perform(choose, "create", CreateItem(index, lease_s), deadline_s)
            if reply.session is None or reply.observation is None:
                raise ServerFailedError(f"{asked[-1].url} answered create without a session and an observation: {reply}")
        except RefusedError as refused:  # perhaps because it is another world, which has no such task
            asked[-1].sessions -= 1
            if self._expected:
                self._check(asked[-1], (await self._calls.read(asked[-1], "/v1/world", WorldInfo)).identity)
            raise refused
        except BaseException:
            asked[-1].sessions -= 1
            raise
        asked[-1].room = ROOM if reply.free is None else asked[-1].sessions + reply.free
        if reply.batchable and asked[-1].batcher is None:
            asked[-1].batcher = RequestBatcher(partial(self._calls.ask, asked[-1]))
        session = Session(reply.session, index, asked[-1], state_key=reply.state_key)
        self._sessions[session.id] = session
        try:
            self._check(asked[-1], reply.world or "a world that it does not name")
        except WrongWorldError:
            await self.close(session)
            raise
        return session, reply.observation

    def _check(self, replica: Replica, hosted: str) -> None:
        if self._expected and hosted != self._expected:
            raise WrongWorldError(
                f"{replica.url} hosts {hosted}, but {self._expected} is being played: the server was replaced by another. Start "
                "the right one there"
            )

    async def _undo(self, starting: asyncio.Future[tuple[Session, str]]) -> None:
        try:
            session, _ = await starting
        except EnvironmentCallError:
            return
        await self.close(session)

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def _close_all(self, replica: Replica) -> None:
        items = [CloseItem(session.id) for session in self._sessions.values() if session.replica is replica]
        if not items:
            return
        try:
            await self._calls.ask(replica, "close", items, time.monotonic() + 1.0)
        except EnvironmentCallError as fault:
            log.warning("could not close %d sessions; their leases will end them: %s", len(items), fault)

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.replica.sessions -= 1
