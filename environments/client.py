"""The asynchronous client of environment servers, used to play episodes.

A call is retried until its deadline while a server is unreachable or busy, or its answers are lost
or damaged. Repeating is safe. A step carries its turn and a start its key, so the server repeats
its answer and does not perform the call twice. An answer is damaged if it names another session or
turn, or if its reward is outside the world's range. Other errors are raised as a subclass of
`EnvironmentCallError`. An error never turns into an observation or a reward.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self
from urllib.parse import quote

from environments.calls import Calls, Replica
from environments.environment import Step
from environments.errors import (
    BusyError,
    DamagedAnswerError,
    EnvironmentCallError,
    RefusedError,
    ServerFailedError,
    SessionLostError,
    WrongWorldError,
)
from environments.protocol import (
    CloseItem,
    CreateItem,
    Health,
    Reply,
    StepItem,
    TaskList,
    WorldInfo,
    in_range,
)
from environments.request_batcher import RequestBatcher

log = logging.getLogger(__name__)

ROOM = 10_000.0
"""Assumed number of free sessions of a server that does not report it."""
CLOSE_S = 5.0
EXIT_S = 1.0
"""Seconds for which the client waits at its end for sessions to be closed."""
HEALTH_S = 5.0


@dataclass(eq=False)
class Session:
    """An episode in progress.

    Attributes:
        id: The server's id of the session.
        index: The task.
        replica: The server that holds the session.
        reward_range: Smallest and largest reward of one action in this world.
        last: The last answered request.
        turn: Number of the next action.
        state_key: The world's digest of the current state. Empty if the world reports none.
    """

    id: str
    index: int
    replica: Replica
    reward_range: tuple[float, float]
    last: CreateItem | StepItem
    turn: int = 0
    state_key: str = ""

    def accepts(self, step: Reply) -> bool:
        """Return whether the reply to a step is complete.

        Its reward must also be within the world's range.
        """
        has_all = step.observation is not None and step.done is not None
        return has_all and step.reward is not None and in_range(step.reward, self.reward_range)


class EnvironmentClient:
    """Play episodes on one or more servers of the same world.

    It is an async context manager, bound to the event loop that enters it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        expected: str = "",
        deadline_s: float = 60.0,
        connections: int = 256,
    ) -> None:
        """
        Args:
            urls: Base URLs of servers of one world, or files that hold them (see `present_url`). A
                new session goes to the server with the most room left.
            expected: `WorldInfo.identity` of the world. No session is opened on another world or
                version. Empty: any world.
            deadline_s: Time limit of a call in seconds, with all its retries.
            connections: Most requests in flight at once. Further calls wait.

        Raises:
            ValueError: `urls` is empty.
        """
        if not urls:
            raise ValueError("urls is empty: name at least one environment server")
        self._calls = Calls(urls, deadline_s, connections)
        self._replicas = self._calls.replicas
        self._expected = expected
        self._sessions: dict[str, Session] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the open sessions on all reachable servers, then the connections."""
        try:
            for session in list(self._sessions.values()):
                self._forget(session)
                self._close(session.replica, session.id)
            if self._closing and (late := (await asyncio.wait(self._closing, timeout=EXIT_S))[1]):
                log.warning("%d sessions were not closed in time. Leases end them", len(late))
        finally:
            for task in self._closing:
                task.cancel()
            await self._calls.close()

    async def start(self, index: int, *, lease_s: float = 600.0) -> tuple[Session, str]:
        """Open a session and begin task `index`, in one request.

        If the call fails or is cancelled, a session that a server still opens is closed in the
        background.

        Args:
            index: The task.
            lease_s: Seconds that the session outlives its last request. It must exceed the longest
                pause between two actions.

        Returns:
            The session and the first observation.

        Raises:
            EnvironmentCallError: UnreachableError, DeadlineExceededError, BusyError,
                ServerFailedError, WrongWorldError (another world than expected), or RefusedError
                (no such task).
        """
        asked: list[Replica] = []

        def choose() -> Replica:
            if asked:
                asked[-1].sessions -= 1
            asked.append(self._calls.roomiest())
            # Count it while it is opened, so that simultaneous starts spread over the replicas.
            asked[-1].sessions += 1
            return asked[-1]

        key, lost = secrets.token_hex(16), set[Replica]()
        item = CreateItem(index, lease_s, key)
        try:
            reply = await self._calls.perform(choose, "create", item, _opens)
            assert reply.session is not None
            assert reply.observation is not None
            assert reply.reward_range is not None
            self._check(asked[-1], reply.world or "a world that it does not name")
            lost = set(asked) - {asked[-1]}
        except BaseException as fault:
            asked[-1].sessions -= 1
            lost = set(asked)
            if isinstance(fault, BusyError) and not asked[-1].full:
                asked[-1].full = True
                log.warning("no session became free in time: %s", fault)
            # The server may host another world, which has no such task.
            if self._expected and isinstance(fault, RefusedError):
                world = await self._calls.read(asked[-1], "/v1/world", WorldInfo)
                self._check(asked[-1], world.identity)
            raise
        finally:
            for replica in lost:
                self._close(replica, key)
        asked[-1].room = ROOM if reply.free is None else asked[-1].sessions + reply.free
        if reply.batchable and asked[-1].batcher is None:
            asked[-1].batcher = RequestBatcher(partial(self._calls.ask, asked[-1]))
        session = Session(
            reply.session,
            index,
            asked[-1],
            reply.reward_range,
            last=item,
            state_key=reply.state_key,
        )
        self._sessions[session.id] = session
        return session, reply.observation

    async def step(self, session: Session, action: str) -> Step:
        """Perform one action.

        After a cancelled or failed step, repeat it with the same action or close the session.

        Raises:
            EnvironmentCallError: UnreachableError, DeadlineExceededError, SessionLostError,
                ServerFailedError, or RefusedError (the episode is over).
        """
        reply = await self._ask(session, StepItem(session.id, session.turn, action))
        assert reply.observation is not None
        assert reply.reward is not None
        assert reply.done is not None
        session.turn += 1
        session.state_key = reply.state_key
        return Step(reply.observation, reply.reward, reply.done, reply.refused)

    async def keep(self, session: Session) -> None:
        """Renew the session's lease after a message without an action.

        The last request is sent again. The server repeats its answer and performs nothing.

        Raises:
            EnvironmentCallError: See `step`.
        """
        await self._ask(session, session.last)

    async def _ask(self, session: Session, item: CreateItem | StepItem) -> Reply:
        operation, complete = (
            ("create", _opens) if isinstance(item, CreateItem) else ("step", session.accepts)
        )
        try:
            reply = await self._calls.perform(lambda: session.replica, operation, item, complete)
        except DamagedAnswerError:
            raise
        except (SessionLostError, ServerFailedError):
            self._forget(session)
            raise
        if reply.session is not None and reply.session != session.id:
            # Only a repeated create opens another session, if the first one has ended.
            self._forget(session)
            self._close(session.replica, reply.session)
            raise SessionLostError(
                f"{session.replica.url}: the session of task {session.index} has ended"
            )
        session.last = item
        return reply

    async def close(self, session: Session) -> None:
        """End the session. Never raises an EnvironmentCallError.

        If the call is cancelled, the session is still closed in the background. If the server
        cannot be reached, the session ends with its lease.
        """
        self._forget(session)
        await asyncio.shield(self._close(session.replica, session.id))

    async def health(self) -> dict[str, Health | EnvironmentCallError]:
        """Return each server's health report by URL, or the error if it did not answer in time.

        The limit is `HEALTH_S` seconds. There are no retries.
        """
        deadline = time.monotonic() + HEALTH_S
        asked = (
            self._calls.read_once(replica, "/health", Health, deadline)
            for replica in self._replicas
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        result: dict[str, Health | EnvironmentCallError] = {}
        for replica, answer in zip(self._replicas, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, EnvironmentCallError):
                raise answer
            result[replica.url] = answer
        return result

    async def world(self) -> WorldInfo:
        """Return the world that all servers host.

        Raises:
            EnvironmentCallError: A server does not answer.
            WrongWorldError: The servers host different worlds or versions.
        """
        (first, told), *others = (await self.worlds()).items()
        for url, world in others:
            if world.identity != told.identity:
                raise WrongWorldError(
                    f"{url} hosts {world.identity}, but {first} hosts {told.identity}. All servers "
                    "must host the same world and version",
                    url=url,
                    hosted=world.identity,
                    expected=told.identity,
                )
        return told

    async def worlds(self) -> dict[str, WorldInfo]:
        """Return the world that each server hosts, by URL.

        Raises:
            EnvironmentCallError: A server does not answer.
        """
        worlds = await asyncio.gather(
            *(self._calls.read(replica, "/v1/world", WorldInfo) for replica in self._replicas)
        )
        return {replica.url: world for replica, world in zip(self._replicas, worlds, strict=True)}

    async def tasks(self, name: str) -> list[int]:
        """Return the task indices of a split or of another named list, in their fixed order.

        Raises:
            EnvironmentCallError: A server does not answer.
            RefusedError: The world has no such list.
        """
        return (
            await self._calls.read(
                self._calls.roomiest(), f"/v1/tasks?split={quote(name)}", TaskList
            )
        ).tasks

    async def tags(self, name: str) -> dict[int, str]:
        """Return the tag of each task of a list, e.g. "depth 2", by index.

        Empty if the world has no tags.

        Raises:
            EnvironmentCallError: A server does not answer.
            RefusedError: The world has no such list.
        """
        found = await self._calls.read(
            self._calls.roomiest(), f"/v1/tasks?split={quote(name)}&tags=1", TaskList
        )
        return dict(zip(found.tasks, found.tags, strict=True)) if found.tags else {}

    def _check(self, replica: Replica, hosted: str) -> None:
        if self._expected and hosted != self._expected:
            raise WrongWorldError(
                f"{replica.url} hosts {hosted}, but the episodes belong to {self._expected}: the "
                f"server was replaced. Start a server of {self._expected} there",
                url=replica.url,
                hosted=hosted,
                expected=self._expected,
            )

    def _close(self, replica: Replica, name: str) -> asyncio.Task[None]:
        """Close the session with this id or key in the background."""

        async def close() -> None:
            try:
                await self._calls.perform(
                    lambda: replica, "close", CloseItem(name), deadline_s=CLOSE_S
                )
            except SessionLostError:
                pass
            except EnvironmentCallError as fault:
                if not replica.close_failed:
                    replica.close_failed = True
                    log.warning("could not close a session. Leases end such sessions: %s", fault)

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.replica.sessions -= 1


def _opens(reply: Reply) -> bool:
    """Return whether the reply to a create is complete."""
    return None not in (reply.session, reply.observation, reply.reward_range)
