"""Sessions: leased episodes of one world, with steps that are safe to repeat. Knows nothing of HTTP."""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import threading
import time
from asyncio import Lock
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, cast

from environments.environment import AwaitedEnvironment, Environment, EpisodeOverError, Step, TaskIndexError, World, WorldError
from environments.protocol import Error, Reply, identity
from environments.server.metrics import Metrics

log = logging.getLogger(__name__)

SessionRef = str | int
"""How a request names a session: our dialect by its id, AgentGym's by its number."""


class RequestError(Exception):
    """A request or an item that is not served, with the status and the error that say why."""

    def __init__(self, status: int, type: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(type=type, message=message, field=field)


class Session:
    """One open session. `lock` keeps a blocking world's session to one thread at a time."""

    __slots__ = ("action", "environment", "expires", "id", "last", "lease_s", "lock", "number", "turn")

    def __init__(self, environment: Environment, id: str, number: int, lease_s: float) -> None:
        self.environment = environment
        self.id = id
        self.number = number
        self.lease_s = lease_s
        self.expires = math.inf
        self.turn = 0
        self.action: str | None = None
        self.last: Reply | None = None
        self.lock = Lock()


class Sessions:
    """The open sessions of one process.

    Calls for different sessions may come from different threads; calls for one session must come one after another.

    An id is `number-signature`. The signature tells an id that was once given out (410 when its session has ended) from one
    that never was (404), without remembering any that ended; the number modulo `workers` is the process that holds the session.
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
        self.metrics = metrics
        self.limit = limit
        self.default_lease_s = default_lease_s
        self._clock = clock
        self._workers = workers
        self._secret = secret or secrets.token_bytes(32)
        # Numbers begin anywhere, so that a client of an earlier process does not reach a stranger's session by its old number.
        self._first = secrets.randbelow(2**40) * workers + worker
        self._next = self._first
        self._open: dict[SessionRef, Session] = {}
        self._count = 0
        self._count_lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def answer(self, operation: str, call: tuple[Any, ...]) -> Reply:
        """Performs one of create, reset, step, close, observe; a refusal becomes a reply that says why."""
        try:
            reply: Reply = getattr(self, operation)(*call)
        except RequestError as refusal:
            self.metrics.errors.labels(refusal.error.type).inc()
            return Reply(status=refusal.status, error=refusal.error)
        return reply

    async def answer_awaited(self, operation: str, call: tuple[Any, ...]) -> Reply:
        """As `answer`, for a world whose resets and steps are awaited; not for `look`."""
        if operation == "close" or operation == "observe":
            return self.answer(operation, call)
        try:
            reply: Reply = await getattr(self, f"{operation}_awaited")(*call)
            return reply
        except RequestError as refusal:
            self.metrics.errors.labels(refusal.error.type).inc()
            return Reply(status=refusal.status, error=refusal.error)

    def create(self, index: int | None, lease_s: float | None, numbered: bool = False) -> Reply:
        """Opens a session and, with an index, begins its first episode. `numbered` also makes it reachable by its number."""
        session, reply = self._open_session(lease_s, numbered)
        if index is not None:
            try:
                self._begin(session, index)
            except RequestError:
                self.end(session, "failed")
                raise
        return self._opened(session, reply)

    async def create_awaited(self, index: int | None, lease_s: float | None, numbered: bool = False) -> Reply:
        """As `create`."""
        session, reply = self._open_session(lease_s, numbered)
        if index is not None:
            try:
                await self._begin_awaited(session, index)
            except RequestError:
                self.end(session, "failed")
                raise
        return self._opened(session, reply)

    def reset(self, ref: SessionRef, index: int) -> Reply:
        """Begins the episode of task `index`."""
        session = self.find(ref)
        return self._begin(session, index)

    async def reset_awaited(self, ref: SessionRef, index: int) -> Reply:
        """As `reset`."""
        session = self.find(ref)
        return await self._begin_awaited(session, index)

    def step(self, ref: SessionRef, turn: int | None, action: str) -> Reply:
        """Performs the action of `turn`, or answers again what the same turn was answered. `turn` None means the next one."""
        session = self.find(ref)
        if turn is not None and turn != session.turn:
            return _repeated(session, turn, action)
        started = time.perf_counter()
        try:
            step = session.environment.step(action)
        except Exception as fault:
            raise self._refusal(session, "step", fault) from fault
        return self._stepped(session, action, step, started)

    async def step_awaited(self, ref: SessionRef, turn: int | None, action: str) -> Reply:
        """As `step`."""
        session = self.find(ref)
        if turn is not None and turn != session.turn:
            return _repeated(session, turn, action)
        started = time.perf_counter()
        try:
            step = await cast(AwaitedEnvironment, session.environment).step_awaited(action)
        except Exception as fault:
            raise self._refusal(session, "step", fault) from fault
        return self._stepped(session, action, step, started)

    def observe(self, ref: SessionRef) -> Reply:
        """The last reply that held an observation."""
        session = self.find(ref)
        if session.last is None:
            raise RequestError(409, "episode_over", "no episode has begun; reset the session first")
        return session.last

    def look(self, ref: SessionRef, attribute: str) -> Reply:
        """An attribute, or what a method without arguments returns, of the session's environment, as text."""
        session = self.find(ref)
        shown = getattr(session.environment, attribute, None)
        try:
            return Reply(status=200, observation=str(shown() if callable(shown) else shown))
        except EpisodeOverError as over:
            raise _episode_over(over) from over
        except Exception as fault:
            raise self._failed(session, "look", fault) from fault

    def shows_at_once(self, ref: SessionRef, attribute: str) -> bool:
        """Whether `look` at the attribute asks nothing of the world, which could take long."""
        session = self._open.get(ref)
        return session is None or not callable(getattr(type(session.environment), attribute, None))

    def close(self, ref: SessionRef) -> Reply:
        """Ends the session."""
        self.end(self.find(ref), "closed")
        return Reply(status=200)

    def get(self, ref: SessionRef) -> Session | None:
        """The session of that id or number if it is open, its lease untouched."""
        return self._open.get(ref)

    def find(self, ref: SessionRef) -> Session:
        """The open session of that id or number, its lease renewed.

        Raises:
            RequestError: 404 it never was, 410 it has ended.
        """
        session = self._open.get(ref)
        now = self._clock()
        if session is None:
            if self._was_given_out(ref):
                raise RequestError(410, "session_ended", "the session has ended: closed, lease run out, or its process gone", "session")
            raise RequestError(404, "no_such_session", "there is no such session", "session")
        if session.expires < now:
            self.end(session, "expired")
            raise RequestError(410, "session_ended", f"the session's lease of {session.lease_s:g} s ran out", "session")
        session.expires = now + session.lease_s
        return session

    def expired(self) -> list[Session]:
        """The sessions whose lease has run out and that nothing is working on."""
        now = self._clock()
        return [s for ref, s in list(self._open.items()) if isinstance(ref, str) and s.expires < now and not s.lock.locked()]

    def end(self, session: Session, how: str) -> None:
        """Frees the session; `how` is closed, expired or failed. A second call does nothing."""
        if self._open.pop(session.id, None) is None:
            return
        self._open.pop(session.number, None)
        with self._count_lock:
            self._count -= 1
        self.metrics.sessions.labels(how).inc()
        try:
            session.environment.close()
        except Exception:
            log.exception("the world failed to close a session", extra={"world": self.world.name})

    def end_all(self) -> None:
        """Frees every session."""
        for session in list(self._open.values()):
            self.end(session, "closed")

    def holder(self, ref: SessionRef) -> int | None:
        """The worker that holds the session, None for what no worker ever gave out."""
        if isinstance(ref, int):
            return ref % self._workers
        try:
            return int(ref.partition("-")[0], 16) % self._workers
        except ValueError:
            return None

    def _open_session(self, lease_s: float | None, numbered: bool) -> tuple[Session, Reply]:
        with self._count_lock:
            if self._count >= self.limit:
                raise RequestError(503, "session_limit", f"all {self.limit} sessions of this server are in use; try again later")
            self._count += 1
            number = self._next
            self._next += self._workers
        try:
            environment = self.world.create()
        except Exception as fault:
            with self._count_lock:
                self._count -= 1
            log.exception("the world failed to create a session", extra={"world": self.world.name})
            raise _world_error(fault) from fault
        session = Session(environment, self._sign(number), number, lease_s or self.default_lease_s)
        self._open[session.id] = session
        if numbered:
            self._open[number] = session
        self.metrics.sessions.labels("created").inc()
        batchable = not getattr(self.world, "blocking", False)
        free = (self.limit - self._count) * self._workers  # the other workers are taken to be as full as this one
        reply = Reply(200, session.id, session.lease_s, free, world=self._identity, batchable=batchable)
        reply.number = number if numbered else None
        return session, reply

    def _opened(self, session: Session, reply: Reply) -> Reply:
        if session.last is not None:
            reply.turn, reply.observation, reply.state_key = 0, session.last.observation, session.last.state_key
        session.expires = self._clock() + session.lease_s
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
        session.turn, session.action = 0, None
        session.last = Reply(status=200, turn=0, observation=observation, state_key=state_key)
        session.expires = self._clock() + session.lease_s
        return session.last

    def _stepped(self, session: Session, action: str, step: Step, started: float) -> Reply:
        try:
            observation, reward, done = step.observation, float(step.reward), bool(step.done)
            _check(observation)
            if not math.isfinite(reward):
                raise ValueError(f"the reward is {reward}")
            state_key = "" if done else _state_key(session.environment)
        except Exception as fault:
            raise self._failed(session, "step", fault) from fault
        self.metrics.step_seconds.observe(time.perf_counter() - started)
        reply = Reply(status=200, turn=session.turn, observation=observation, reward=reward, done=done, state_key=state_key)
        session.action, session.last = action, reply
        session.turn += 1
        session.expires = self._clock() + session.lease_s
        return reply

    def _refusal(self, session: Session, operation: str, fault: Exception, index: int | None = None) -> RequestError:
        """What answers a fault of the world: the client's by the contract, or the world's own, which ends the session."""
        if isinstance(fault, TaskIndexError) and operation == "reset":
            return RequestError(422, "no_such_task", f"{fault or index}; GET /v1/tasks lists the tasks", "index")
        if isinstance(fault, EpisodeOverError) and operation == "step":
            return _episode_over(fault)
        return self._failed(session, operation, fault)

    def _failed(self, session: Session, operation: str, fault: Exception) -> RequestError:
        log.exception("the world failed", extra={"world": self.world.name, "operation": operation, "session": session.id})
        self.end(session, "failed")
        return _world_error(fault)

    def _sign(self, number: int) -> str:
        prefix = f"{number:x}"
        return f"{prefix}-{hashlib.blake2b(prefix.encode(), key=self._secret, digest_size=10).hexdigest()}"

    def _was_given_out(self, ref: SessionRef) -> bool:
        if isinstance(ref, int):
            return self._first <= ref < self._next
        prefix = ref.partition("-")[0]
        try:
            return secrets.compare_digest(self._sign(int(prefix, 16)), ref)
        except (ValueError, TypeError):  # not a number, or not ASCII
            return False


def _repeated(session: Session, turn: int, action: str) -> Reply:
    """What the turn before this one was answered.

    Raises:
        RequestError: It is another turn, or was performed with another action.
    """
    if turn != session.turn - 1 or session.last is None:
        raise RequestError(409, "wrong_turn", f"the next turn is {session.turn}, not {turn}", "turn")
    if action != session.action:
        raise RequestError(409, "turn_repeated", f"turn {turn} was performed with another action", "action")
    return session.last


def _state_key(environment: Environment) -> str:
    """A digest of the state that the environment is in, 16 hex digits; empty where it tells none."""
    tell = getattr(environment, "state_key", None)
    return "" if tell is None else blake2b(tell().encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _check(observation: str) -> None:
    """An observation that cannot travel as UTF-8 is the world's fault and must not spoil a whole batch."""
    if not observation.isascii():
        observation.encode()


def _episode_over(over: EpisodeOverError) -> RequestError:
    return RequestError(409, "episode_over", f"{over or 'the episode has not begun or has ended'}; reset the session first")


def _world_error(fault: Exception) -> RequestError:
    # A world says by its own types what is no bug of it, such as a program that it needs and that died.
    why = "the world failed" if isinstance(fault, WorldError) else "the world failed, which is a bug in it"
    return RequestError(500, "world_fault", f"{why}: {type(fault).__name__}: {fault}"[:500])
