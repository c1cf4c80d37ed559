"""Sessions: leased episodes of one world, with steps that are safe to repeat.

This module is independent of HTTP and is used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any, TypeVar

from environments.environment import (
    Environment,
    EpisodeOverError,
    Step,
    TaskIndexError,
    World,
    WorldBusyError,
)
from environments.protocol import Reply, identity, in_range
from environments.server.errors import RequestError, world_failed
from environments.server.fair_shares import FairShares
from environments.server.metrics import Metrics

log = logging.getLogger(__name__)

NUMBERS = 2**53
"""Upper bound of session numbers: any JSON reader represents smaller integers exactly.

Guessing one of 10,000 sessions takes about 10^12 requests.
"""
REMEMBERED = 50_000
"""Names of ended sessions that are still distinguished from unknown ones."""

T = TypeVar("T")
SessionRef = str | int
"""How a request names a session: by id in our dialect, by number in AgentGym's."""


class Session:
    """One open session.

    Attributes:
        id, number: Its random names in our dialect and in AgentGym's.
        key: The client's key of the create request, if any.
        client: The client that it counts for. See `FairShares`.
        lease_s: Seconds that it outlives its last request.
        touched: Time of the last request in seconds.
        expires: Time at which its lease runs out. Infinite while it is being opened.
        turn: Number of the next action.
        action: Digest of the last action. The action itself may be long and would stay in memory.
        last: The last reply with an observation.
        lock: Held while a blocking world performs a call of the session.
    """

    __slots__ = (
        "action", "client", "environment", "expires", "id", "key", "last", "lease_s", "lock", "number", "touched", "turn",
    )  # fmt: skip

    environment: Environment

    def __init__(self, lease_s: float, client: str, key: str | None) -> None:
        self.id = secrets.token_hex(16)
        self.number = secrets.randbelow(NUMBERS)
        self.key = key
        self.client = client
        self.lease_s = lease_s
        self.touched = self.expires = math.inf
        self.turn = 0
        self.action = b""
        self.last: Reply | None = None
        self.lock = asyncio.Lock()

    def renew(self, now: float) -> None:
        """Restart the lease."""
        self.touched = now
        self.expires = now + self.lease_s


class Sessions:
    """The sessions of one world and the operations on them.

    A fast world is called on the event loop, a blocking one in threads. Calls for one session must
    be sequential.
    """

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        *,
        limit: int = 10_000,
        default_lease_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            world: Creates the sessions' environments.
            metrics: Counts the sessions and times their steps.
            limit: Most sessions open at once.
            default_lease_s: Default lease: seconds that a session outlives its last request.
            clock: Returns the time in seconds.
        """
        self.world = world
        self.metrics = metrics
        self._default_lease_s = default_lease_s
        self._clock = clock
        self._open: dict[SessionRef, Session] = {}
        self._keyed: dict[SessionRef, Session] = {}
        self._ended: dict[SessionRef, None] = {}
        self._shares = FairShares(limit, clock)

    def __len__(self) -> int:
        return self._shares.count

    async def answer(self, operation: str, call: tuple[Any, ...]) -> Reply:
        """Perform an operation, one of the methods below. A rejection becomes its error reply."""
        try:
            reply: Reply = await getattr(self, operation)(*call)
        except RequestError as refusal:
            return self.refused(operation, call, refusal)
        return reply

    def refused(self, operation: str, call: tuple[Any, ...], refusal: RequestError) -> Reply:
        """Return the error reply to a rejected call. It identifies the item."""
        self.metrics.errors.labels(refusal.error.type).inc()
        reply = Reply(status=refusal.status, error=refusal.error)
        if operation == "create":
            reply.key = call[2]
        elif isinstance(call[0], str):
            reply.session = call[0]
            reply.turn = call[1] if operation == "step" else None
        return reply

    async def create(
        self,
        index: int | None,
        lease_s: float | None,
        key: str | None = None,
        numbered: bool = False,
        client: str = " ",
    ) -> Reply:
        """Open a session and, with an index, begin its first episode.

        Args:
            index: The task. None: begin no episode.
            lease_s: Seconds that the session outlives its last request. None: the default.
            key: Identifies the request. Repeating it returns the same session.
            numbered: Whether the session can also be found by its number.
            client: (address, space, name) of the client that the session counts for.
        """
        if key is not None and (known := self._keyed.get(key)) is not None:
            return await self._opened_before(known)
        if key in self._ended:
            raise RequestError(410, "session_ended", "the session of this key was closed", "key")
        session = await self._opened(lease_s, client, key, numbered)
        if index is not None:
            try:
                await self._begin(session, index)
            except RequestError:
                await self.end(session, "failed")
                raise
        session.renew(self._clock())
        self._shares.opened(session)
        reply = self._opening(session)
        reply.number = session.number if numbered else None
        return reply

    async def reset(self, ref: SessionRef, index: int) -> Reply:
        """Begin the episode of task `index`."""
        return await self._begin(await self.find(ref), index)

    async def step(self, ref: SessionRef, turn: int | None, action: str) -> Reply:
        """Perform the action of `turn`, or repeat the answer to the same turn.

        `turn` None means the next turn.
        """
        session = await self.find(ref)
        if turn is not None and turn != session.turn:
            return _repeated(session, turn, action)
        started = time.perf_counter()
        try:
            step, state_key = await self._play(session.environment, "step", action)
            observation = step.observation
            reward = float(step.reward)
            done = bool(step.done)
            refused = None if step.refused is None else bool(step.refused)
            _check(observation)
            if not in_range(reward, self.world.reward_range):
                raise ValueError(
                    f"the reward is {reward}, but the world declares rewards from "
                    f"{self.world.reward_range}"
                )
        except EpisodeOverError as over:
            raise _episode_over(over) from over
        except Exception as fault:
            raise await self._failed(session, "step", fault) from fault
        self.metrics.step_seconds.observe(time.perf_counter() - started)
        reply = Reply(status=200, session=session.id, turn=session.turn, observation=observation)
        reply.reward, reply.done, reply.refused, reply.state_key = reward, done, refused, state_key
        session.action, session.last = _digest(action), reply
        session.turn += 1
        session.renew(self._clock())
        return reply

    async def observe(self, ref: SessionRef) -> Reply:
        """Return the last reply with an observation."""
        session = await self.find(ref)
        if session.last is None:
            raise RequestError(409, "episode_over", "no episode has begun; reset the session first")
        return session.last

    async def look(self, ref: SessionRef, attribute: str) -> Reply:
        """Return an attribute of the session's environment as text.

        A method without arguments is called.
        """
        session = await self.find(ref)

        def show() -> str:
            shown = getattr(session.environment, attribute, None)
            return str(shown() if callable(shown) else shown)

        try:
            return Reply(
                status=200, observation=await _in_thread(show) if self.world.blocking else show()
            )
        except EpisodeOverError as over:
            raise _episode_over(over) from over
        except Exception as fault:
            raise await self._failed(session, "look", fault) from fault

    async def close(self, ref: SessionRef) -> Reply:
        """End the session with this id, number or key, and reject a later create with this key."""
        try:
            session = self._keyed.get(ref) or await self.find(ref)
        finally:
            self._remember(ref)
        if session.expires == math.inf:  # it is being opened, and the sweep ends it afterwards
            session.lease_s = 0.0
        else:
            await self.end(session, "closed")
        return Reply(status=200, session=session.id if isinstance(ref, int) else ref)

    def get(self, ref: SessionRef) -> Session | None:
        """Return the open session with this id or number, if any, without renewing its lease."""
        return self._open.get(ref)

    async def find(self, ref: SessionRef) -> Session:
        """Return the open session with this id or number, and renew its lease.

        Raises:
            RequestError: 404 it never existed, 410 it has ended.
        """
        session = self._open.get(ref)
        if session is None:
            if ref in self._ended:
                why = "the session has ended: closed, lease run out, or its place given to a client that had fewer"
                raise RequestError(410, "session_ended", why, "session")
            raise RequestError(404, "no_such_session", "there is no such session", "session")
        now = self._clock()
        if session.expires < now:
            await self.end(session, "expired")
            raise RequestError(
                410,
                "session_ended",
                f"the session's lease of {session.lease_s:g} s ran out",
                "session",
            )
        session.renew(now)
        self._shares.used(session)
        return session

    def expired(self) -> list[Session]:
        """Return the sessions whose lease has run out and that are not in use."""
        now = self._clock()
        return [
            session
            for ref, session in self._open.items()
            if ref == session.id and session.expires < now and not session.lock.locked()
        ]

    async def end(self, session: Session, how: str) -> None:
        """End the session. A second call does nothing.

        Args:
            how: "closed", "expired", "failed" or "reclaimed", for the metrics.
        """
        if not self._forget(session):
            return
        self.metrics.sessions.labels(how).inc()
        try:
            await self._run(session.environment.close)
        except Exception:
            log.exception("the world failed to close a session", extra={"world": self.world.name})

    async def end_all(self) -> None:
        """End every session."""
        for session in list(self._open.values()):
            await self.end(session, "closed")

    async def _opened(
        self, lease_s: float | None, client: str, key: str | None, numbered: bool
    ) -> Session:
        """Return a new session before its first episode.

        Raises:
            RequestError: 503 all sessions are in use, 500 the world failed.
        """
        place = self._shares.take(client)
        if place is None:
            limit = self._shares.limit
            raise RequestError(
                503,
                "session_limit",
                f"all {limit} sessions of this server are in use; try again later",
            )
        client, reclaimed = place
        session = Session(lease_s or self._default_lease_s, client, key)
        self._open[session.id] = session
        if key is not None:
            self._keyed[key] = session
        if numbered:
            self._open[session.number] = session
        if reclaimed is not None:
            await self.end(reclaimed, "reclaimed")
        try:
            session.environment = await self._run(self.world.create)
        except Exception as fault:
            self._forget(session)
            log.exception("the world failed to create a session", extra={"world": self.world.name})
            raise world_failed(fault) from fault
        self.metrics.sessions.labels("created").inc()
        return session

    async def _opened_before(self, session: Session) -> Reply:
        """Return the reply to a repeated create.

        Raises:
            RequestError: 503 the first create is in progress, 409 the session has performed actions
                since.
        """
        if session.expires == math.inf:
            raise RequestError(
                503, "still_opening", "the session of this key is being opened; ask again", "key"
            )
        if session.turn:
            raise RequestError(
                409,
                "key_repeated",
                "the session of this key has been played on; choose another key",
                "key",
            )
        return self._opening(await self.find(session.id))

    def _opening(self, session: Session) -> Reply:
        free = self._shares.limit - self._shares.count
        world = identity(self.world.name, self.world.version)
        reply = Reply(
            200, session.id, session.lease_s, free, world=world, batchable=not self.world.blocking
        )
        reply.reward_range, reply.key = self.world.reward_range, session.key
        if session.last is not None:
            reply.turn = 0
            reply.observation = session.last.observation
            reply.state_key = session.last.state_key
        return reply

    def _forget(self, session: Session) -> bool:
        """Remove the session from all tables. Return whether it was open."""
        if self._open.pop(session.id, None) is None:
            return False
        for ref in (session.id, session.number):
            if ref == session.id or self._open.pop(ref, None) is not None:
                self._remember(ref)
        if session.key is not None and self._keyed.get(session.key) is session:
            del self._keyed[session.key]
        self._shares.ended(session)
        return True

    def _remember(self, ended: SessionRef) -> None:
        self._ended[ended] = None
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _begin(self, session: Session, index: int) -> Reply:
        started = time.perf_counter()
        try:
            observation, state_key = await self._play(session.environment, "reset", index)
            _check(observation)
        except TaskIndexError as unknown:
            raise RequestError(
                422, "no_such_task", f"{unknown or index}; GET /v1/tasks lists the tasks", "index"
            ) from unknown
        except WorldBusyError as busy:
            raise RequestError(503, "world_busy", str(busy)) from busy
        except Exception as fault:
            raise await self._failed(session, "reset", fault) from fault
        self.metrics.reset_seconds.observe(time.perf_counter() - started)
        session.turn, session.action = 0, b""
        session.last = Reply(
            status=200, session=session.id, turn=0, observation=observation, state_key=state_key
        )
        session.renew(self._clock())
        return session.last

    async def _play(self, environment: Any, method: str, argument: Any) -> tuple[Any, str]:
        """Call reset or step.

        Return its result and a digest of the state, which is empty at the end.
        """

        def play() -> tuple[Any, str]:
            result = getattr(environment, method)(argument)
            over = isinstance(result, Step) and result.done
            return result, "" if over else _state_key(environment)

        return await self._run(play)

    async def _run(self, call: Callable[[], T]) -> T:
        """Call a function of the world, in a thread of its own if the world blocks."""
        return await _in_thread(call) if self.world.blocking else call()

    async def _failed(self, session: Session, operation: str, fault: Exception) -> RequestError:
        log.exception(
            "the world failed",
            extra={"world": self.world.name, "operation": operation, "session": session.id},
        )
        await self.end(session, "failed")
        return world_failed(fault)


async def _in_thread(call: Callable[[], T]) -> T:
    """Call a function in a thread of its own.

    Python does not join a daemon thread at exit, so a hanging world does not delay the end of its
    server.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # it finishes even if its request is cancelled

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as fault:  # noqa: BLE001 - raised in the caller
            result.set_exception(fault)

    threading.Thread(target=run, name="world", daemon=True).start()
    return await asyncio.wrap_future(result)


def _repeated(session: Session, turn: int, action: str) -> Reply:
    """Return the answer to the previous turn.

    Raises:
        RequestError: 409 it is another turn, or it was performed with another action.
    """
    if turn != session.turn - 1 or session.last is None:
        raise RequestError(
            409, "wrong_turn", f"the next turn is {session.turn}, not {turn}", "turn"
        )
    if _digest(action) != session.action:
        raise RequestError(
            409, "turn_repeated", f"turn {turn} was performed with another action", "action"
        )
    return session.last


def _digest(text: str, size: int = 16) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def _state_key(environment: Environment) -> str:
    """Return a digest of the environment's state, 16 hex digits. Empty if it reports none."""
    key = environment.state_key()
    return "" if key is None else _digest(key, 8).hex()


def _check(observation: str) -> None:
    """Check that an observation can be encoded as UTF-8.

    If not, it is an error of the world and must not break a whole batch.
    """
    if not observation.isascii():
        observation.encode()


def _episode_over(over: EpisodeOverError) -> RequestError:
    return RequestError(
        409,
        "episode_over",
        f"{over or 'the episode has not begun or has ended'}; reset the session first",
    )
