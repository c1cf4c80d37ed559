"""Sessions: leased episodes of one world, with steps that are safe to repeat.

This module is independent of HTTP.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, cast

from environments.environment import (
    AwaitedEnvironment,
    Environment,
    EpisodeOverError,
    Step,
    TaskIndexError,
    World,
    WorldBusyError,
)
from environments.protocol import Reply, identity, in_range
from environments.server.metrics import Metrics
from environments.server.request import RequestError
from environments.server.session import Session, digest_of
from environments.server.session_ids import SessionIds, SessionRef
from environments.server.session_store import SessionStore, world_failed

log = logging.getLogger(__name__)

OPERATIONS = frozenset({"create", "reset", "step", "close", "observe", "look"})
"""Operations of `Sessions` that requests may call."""
AWAITED = frozenset({"create", "reset", "step"})
"""Operations that the event loop can await, if the world supports it."""


class Sessions:
    """Perform the operations on the sessions of one process.

    Calls for different sessions may come from different threads. Calls for one session must be
    sequential.
    """

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        *,
        limit: int = 10_000,
        default_lease_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        worker: int = 0,
        workers: int = 1,
        secret: bytes | None = None,
    ) -> None:
        self.world = world
        self._identity = identity(world.name, world.version)
        self._reward_range = world.reward_range
        self.metrics = metrics
        self.store = SessionStore(world, metrics, limit, default_lease_s, clock, SessionIds(worker, workers, secret))

    def __len__(self) -> int:
        return len(self.store)

    def answer(self, operation: str, call: tuple[Any, ...]) -> Reply:
        """Perform one of OPERATIONS. A rejection becomes a reply with the error."""
        try:
            if operation not in OPERATIONS:
                raise RequestError(404, "not_found", f"there is no operation {operation!r}")
            reply: Reply = getattr(self, operation)(*call)
        except RequestError as refusal:
            return self.refused(operation, call, refusal)
        return reply

    async def answer_awaited(self, operation: str, call: tuple[Any, ...]) -> Reply:
        """Perform an operation for a world with awaited resets and steps.

        Not for `look`. See `answer`.
        """
        if operation not in AWAITED:
            return self.answer(operation, call)
        try:
            reply: Reply = await getattr(self, f"{operation}_awaited")(*call)
            return reply
        except RequestError as refusal:
            return self.refused(operation, call, refusal)

    def refused(self, operation: str, call: tuple[Any, ...], refusal: RequestError) -> Reply:
        """Return the error reply to a rejected call. It identifies the item."""
        self.metrics.errors.labels(refusal.error.type).inc()
        reply = Reply(status=refusal.status, error=refusal.error)
        if operation == "create":
            reply.key = call[2] if len(call) > 2 else None
        elif call and isinstance(call[0], str):
            reply.session = call[0]
            reply.turn = call[1] if operation == "step" else None
        return reply

    def create(self, index: int | None, lease_s: float | None, key: str | None = None, numbered: bool = False, client: str = " ") -> Reply:
        """Open a session and, with an index, begin its first episode.

        Args:
            index: The task. None: begin no episode.
            lease_s: Seconds that the session outlives its last request. None: the default.
            key: Identifies the request. Repeating it returns the same session.
            numbered: Whether the session can also be found by its number.
            client: (address, space, name) of the client that the session counts for.
        """
        if (opened := self._opened_before(key)) is not None:
            return opened
        session = self.store.open(lease_s, client, key=key, numbered=numbered)
        if index is not None:
            try:
                self._begin(session, index)
            except RequestError:
                self.store.end(session, "failed")
                raise
        return self._opened(session, numbered)

    async def create_awaited(
        self, index: int | None, lease_s: float | None, key: str | None = None, numbered: bool = False, client: str = " "
    ) -> Reply:
        """Open a session of an awaited world. See `create`."""
        if (opened := self._opened_before(key)) is not None:
            return opened
        session = self.store.open(lease_s, client, key=key, numbered=numbered)
        if index is not None:
            try:
                await self._begin_awaited(session, index)
            except RequestError:
                self.store.end(session, "failed")
                raise
        return self._opened(session, numbered)

    def reset(self, ref: SessionRef, index: int) -> Reply:
        """Begin the episode of task `index`."""
        session = self.store.find(ref)
        return self._begin(session, index)

    async def reset_awaited(self, ref: SessionRef, index: int) -> Reply:
        """Begin an episode of an awaited world. See `reset`."""
        session = self.store.find(ref)
        return await self._begin_awaited(session, index)

    def step(self, ref: SessionRef, turn: int | None, action: str) -> Reply:
        """Perform the action of `turn`, or repeat the answer to the same turn.

        `turn` None means the next turn.
        """
        session = self.store.find(ref)
        if turn is not None and turn != session.turn:
            return _repeated(session, turn, action)
        started = time.perf_counter()
        try:
            step = session.environment.step(action)
        except Exception as fault:
            raise self._refusal(session, "step", fault) from fault
        return self._stepped(session, action, step, started)

    async def step_awaited(self, ref: SessionRef, turn: int | None, action: str) -> Reply:
        """Perform an action in an awaited world. See `step`."""
        session = self.store.find(ref)
        if turn is not None and turn != session.turn:
            return _repeated(session, turn, action)
        started = time.perf_counter()
        try:
            step = await cast(AwaitedEnvironment, session.environment).step_awaited(action)
        except Exception as fault:
            raise self._refusal(session, "step", fault) from fault
        return self._stepped(session, action, step, started)

    def observe(self, ref: SessionRef) -> Reply:
        """Return the last reply with an observation."""
        session = self.store.find(ref)
        if session.last is None:
            raise RequestError(409, "episode_over", "no episode has begun; reset the session first")
        return session.last

    def look(self, ref: SessionRef, attribute: str) -> Reply:
        """Return an attribute of the session's environment as text.

        A method without arguments is called.
        """
        session = self.store.find(ref)
        shown = getattr(session.environment, attribute, None)
        try:
            return Reply(status=200, observation=str(shown() if callable(shown) else shown))
        except EpisodeOverError as over:
            raise _episode_over(over) from over
        except Exception as fault:
            raise self._failed(session, "look", fault) from fault

    def shows_at_once(self, ref: SessionRef, attribute: str) -> bool:
        """Return whether `look` at the attribute calls no method of the environment.

        A method could take long.
        """
        session = self.store.get(ref)
        return session is None or not callable(getattr(type(session.environment), attribute, None))

    def close(self, ref: SessionRef) -> Reply:
        """End the session."""
        session = self.store.find(ref)
        self.store.end(session, "closed")
        return Reply(status=200, session=session.id)

    def _opened_before(self, key: str | None) -> Reply | None:
        """Return the reply to a repeated create. None: the key is new.

        Raises:
            RequestError: 503 the first create is in progress, 409 the session has performed actions
                since.
        """
        session = None if key is None else self.store.keyed(key)
        if session is None:
            return None
        if session.expires == math.inf:
            raise RequestError(503, "still_opening", "the session of this key is being opened; ask again", "key")
        if session.turn:
            raise RequestError(409, "key_repeated", "the session of this key has been played on; choose another key", "key")
        return self._opening(self.store.find(session.id))

    def _opened(self, session: Session, numbered: bool) -> Reply:
        self.store.opened(session)
        reply = self._opening(session)
        reply.number = session.number if numbered else None
        return reply

    def _opening(self, session: Session) -> Reply:
        batchable = not self.world.blocking
        reply = Reply(200, session.id, session.lease_s, self.store.free, world=self._identity, batchable=batchable)
        reply.reward_range, reply.key = self._reward_range, session.key
        if session.last is not None:
            reply.turn, reply.observation, reply.state_key = 0, session.last.observation, session.last.state_key
        return reply

    def _begin(self, session: Session, index: int) -> Reply:
        started = time.perf_counter()
        try:
            observation = session.environment.reset(index)
        except Exception as fault:
            raise self._refusal(session, "reset", fault, index) from fault
        return self._begun(session, observation, started)

    async def _begin_awaited(self, session: Session, index: int) -> Reply:
        started = time.perf_counter()
        try:
            observation = await cast(AwaitedEnvironment, session.environment).reset_awaited(index)
        except Exception as fault:
            raise self._refusal(session, "reset", fault, index) from fault
        return self._begun(session, observation, started)

    def _begun(self, session: Session, observation: str, started: float) -> Reply:
        try:
            _check(observation)
            state_key = _state_key(session.environment)
        except Exception as fault:
            raise self._failed(session, "reset", fault) from fault
        self.metrics.reset_seconds.observe(time.perf_counter() - started)
        session.turn, session.action = 0, b""
        session.last = Reply(status=200, session=session.id, turn=0, observation=observation, state_key=state_key)
        session.renew(self.store.clock())
        return session.last

    def _stepped(self, session: Session, action: str, step: Step, started: float) -> Reply:
        try:
            observation, reward, done, refused = step.observation, float(step.reward), bool(step.done), bool(step.refused)
            _check(observation)
            if not in_range(reward, self._reward_range):
                raise ValueError(f"the reward is {reward}, but the world declares rewards from {self._reward_range}")
            state_key = "" if done else _state_key(session.environment)
        except Exception as fault:
            raise self._failed(session, "step", fault) from fault
        self.metrics.step_seconds.observe(time.perf_counter() - started)
        reply = Reply(status=200, session=session.id, turn=session.turn, observation=observation)
        reply.reward, reply.done, reply.refused, reply.state_key = reward, done, refused, state_key
        session.action, session.last = digest_of(action), reply
        session.turn += 1
        session.renew(self.store.clock())
        return reply

    def _refusal(self, session: Session, operation: str, fault: Exception, index: int | None = None) -> RequestError:
        """Return the error for an exception of the world, and end the session if the world failed.

        By the contract, some exceptions are errors of the client.
        """
        if isinstance(fault, TaskIndexError) and operation == "reset":
            return RequestError(422, "no_such_task", f"{fault or index}; GET /v1/tasks lists the tasks", "index")
        if isinstance(fault, EpisodeOverError) and operation == "step":
            return _episode_over(fault)
        if isinstance(fault, WorldBusyError) and operation == "reset":
            return RequestError(503, "world_busy", str(fault))
        return self._failed(session, operation, fault)

    def _failed(self, session: Session, operation: str, fault: Exception) -> RequestError:
        log.exception("the world failed", extra={"world": self.world.name, "operation": operation, "session": session.id})
        self.store.end(session, "failed")
        return world_failed(fault)


def _repeated(session: Session, turn: int, action: str) -> Reply:
    """Return the answer to the previous turn.

    Raises:
        RequestError: 409 it is another turn, or it was performed with another action.
    """
    if turn != session.turn - 1 or session.last is None:
        raise RequestError(409, "wrong_turn", f"the next turn is {session.turn}, not {turn}", "turn")
    if digest_of(action) != session.action:
        raise RequestError(409, "turn_repeated", f"turn {turn} was performed with another action", "action")
    return session.last


def _state_key(environment: Environment) -> str:
    """Return a digest of the environment's state, 16 hex digits. Empty if it reports none."""
    key = environment.state_key()
    return "" if key is None else blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _check(observation: str) -> None:
    """Check that an observation can be encoded as UTF-8.

    If not, it is an error of the world and must not break a whole batch.
    """
    if not observation.isascii():
        observation.encode()


def _episode_over(over: EpisodeOverError) -> RequestError:
    return RequestError(409, "episode_over", f"{over or 'the episode has not begun or has ended'}; reset the session first")
