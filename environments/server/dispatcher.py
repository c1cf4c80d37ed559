"""Decide where an item is performed.

The choices are: here at once, here in a thread if the world blocks, or in the worker that holds its
session.

Calls wait for turns that clients share fairly. If a client disconnects, its request is cancelled
and calls that have not started are dropped. A call that has started always finishes, so that a
repeated turn gets the answer of its execution.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from environments.protocol import Reply
from environments.server.daemon_threads import DaemonThreads
from environments.server.fair_turns import FairTurns, ending
from environments.server.metrics import Families
from environments.server.request import RequestError
from environments.server.session import Session
from environments.server.sessions import Sessions
from environments.server.worker_ipc import OtherWorkers, WorkerGoneError

log = logging.getLogger(__name__)

Call = tuple[Any, ...]
"""Arguments of one operation of `Sessions`. The first is the session, except for create."""

THREADS = 64
SLICE_S = 0.01
"""Seconds of work after which a batch of a fast world yields to other requests."""
SWEEP_S = 1.0


class Dispatcher:
    """Perform operations on sessions of any worker.

    There is one dispatcher per worker process. It is used from the worker's event loop.
    """

    def __init__(self, sessions: Sessions, *, worker: int = 0, others: OtherWorkers | None = None) -> None:
        self.sessions = sessions
        self._worker = worker
        self._others = others
        self._creates = itertools.count(worker)
        blocking = sessions.world.blocking
        self._awaited = sessions.world.awaited
        self._pool = DaemonThreads(THREADS, "world") if blocking else None
        self._turns = FairTurns(THREADS if blocking else 1)
        self._working: set[asyncio.Task[Reply]] = set()
        self._ending = False

    async def perform(self, operation: str, calls: Sequence[Call], client: str) -> list[Reply]:
        """Return one reply per call, in order. Calls for one session are performed in order.

        Args:
            operation: One of `OPERATIONS`.
            calls: The arguments of each call.
            client: (address, space, name) of the client whose turns are used.
        """
        items = self.sessions.metrics.items
        items[operation] = items.get(operation, 0) + len(calls)
        if self._others is None:
            return await self.perform_here(operation, calls, client)
        places = [self._place(operation, call) for call in calls]
        if all(place == self._worker for place in places):
            return await self.perform_here(operation, calls, client)
        replies: list[Reply | None] = [None] * len(calls)

        async def perform_at(place: int) -> None:
            mine = [position for position, at in enumerate(places) if at == place]
            answers = await self._perform_in(place, operation, [calls[position] for position in mine], client)
            for position, reply in zip(mine, answers, strict=True):
                replies[position] = reply

        await asyncio.gather(*(perform_at(place) for place in set(places)))
        return [reply for reply in replies if reply is not None]

    async def perform_here(self, operation: str, calls: Sequence[Call], client: str) -> list[Reply]:
        """Perform calls for sessions of this process. See `perform`."""
        if self._ending:
            return [self.sessions.refused(operation, call, ending()) for call in calls]
        if self._pool is None and len(calls) == 1:
            return [self.sessions.answer(operation, calls[0])]
        return await (self._perform_sliced if self._pool is None else self._perform_blocking)(operation, calls, client)

    async def _perform_sliced(self, operation: str, calls: Sequence[Call], client: str) -> list[Reply]:
        answer, replies = self.sessions.answer, list[Reply]()
        try:
            while len(replies) < len(calls):
                async with self._turns.of(client):
                    began = time.perf_counter()
                    for call in itertools.islice(calls, len(replies), None):
                        replies.append(answer(operation, call))
                        if time.perf_counter() - began > SLICE_S:
                            break
                    await asyncio.sleep(0)  # other requests run before the next client's turn
        except RequestError as refusal:
            replies += [self.sessions.refused(operation, call, refusal) for call in calls[len(replies) :]]
        return replies

    def end(self) -> None:
        """Reject calls that have not started, from now on. Started calls are still answered."""
        self._ending = True
        self._turns.end()

    async def session_counts(self) -> dict[int, int]:
        """Return the number of open sessions by worker, for workers that answer."""
        counts = {self._worker: len(self.sessions)}
        if self._others is not None:
            counts |= await self._others.ask_all("sessions", int)
        return counts

    async def families(self) -> dict[int, Families]:
        """Return the metric families by worker."""
        measured = {self._worker: self.sessions.metrics.families()}
        if self._others is not None:
            measured |= await self._others.ask_all("metrics", Families)
        return measured

    async def sweep(self) -> None:
        """End sessions whose lease has run out, in an endless loop."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for session in self.sessions.store.expired():
                if self._pool is None:
                    self.sessions.store.end(session, "expired")
                else:
                    await self._end_blocking(session)

    async def close(self) -> None:
        """End every session.

        A blocking world gets a second for it, since the process ends anyway.
        """
        if self._pool is None:
            self.sessions.store.end_all()
            return
        closing = DaemonThreads(1, "close")  # all threads of the pool may be busy
        try:
            await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(closing, self.sessions.store.end_all), 1.0)
        except TimeoutError:
            log.warning("the world did not close its sessions in time")

    def _place(self, operation: str, call: Call) -> int:
        assert self._others is not None
        if operation == "create":
            key = call[2]  # a repeated create must reach the worker that opened its session
            return (next(self._creates) if key is None else crc32(key.encode())) % self._others.workers
        place = self.sessions.store.ids.holder(call[0])
        return self._worker if place is None else place

    async def _perform_in(self, place: int, operation: str, calls: list[Call], client: str) -> list[Reply]:
        assert self._others is not None
        if place == self._worker:
            return await self.perform_here(operation, calls, client)
        try:
            return await self._others.ask(place, operation, calls, list[Reply], client)
        except WorkerGoneError:
            if operation == "create":
                return await self.perform_here(operation, calls, client)
            gone = RequestError(410, "session_ended", "the session has ended: the process that held it is gone", "session")
            return [self.sessions.refused(operation, call, gone) for call in calls]

    async def _perform_blocking(self, operation: str, calls: Sequence[Call], client: str) -> list[Reply]:
        replies: dict[int, Reply] = {}
        by_session: dict[Any, list[int]] = {}
        for position, call in enumerate(calls):
            by_session.setdefault(position if operation == "create" else call[0], []).append(position)

        async def perform(positions: list[int]) -> None:
            began = time.perf_counter()
            for position in positions:
                replies[position] = await self._perform_one(operation, calls[position], client)
                if time.perf_counter() - began > SLICE_S:
                    await asyncio.sleep(0)  # rejected calls never wait, so yield here
                    began = time.perf_counter()

        await asyncio.gather(*(perform(positions) for positions in by_session.values()))
        return [replies[position] for position in range(len(calls))]

    async def _perform_one(self, operation: str, call: Call, client: str) -> Reply:
        """Perform a call once its session is free and its client has a turn.

        A started call finishes even if it is cancelled.
        """
        session = None if operation == "create" else self.sessions.store.get(call[0])
        if session is None and operation != "create":
            return self.sessions.answer(operation, call)
        if session is not None:
            await session.lock.acquire()
        try:
            await self._turns.take(client)
        except BaseException as refusal:
            if session is not None:
                session.lock.release()
            if isinstance(refusal, RequestError):
                return self.sessions.refused(operation, call, refusal)
            raise

        def done(work: asyncio.Task[Reply]) -> None:
            self._working.discard(work)
            self._turns.give_back()
            if session is not None:
                session.lock.release()

        work = asyncio.create_task(self._perform_apart(operation, call))
        self._working.add(work)
        work.add_done_callback(done)
        return await asyncio.shield(work)

    async def _perform_apart(self, operation: str, call: Call) -> Reply:
        """Perform a call on the event loop if the world supports it, otherwise in a thread."""
        if self._awaited and operation != "look":
            return await self.sessions.answer_awaited(operation, call)
        if operation == "look" and self.sessions.shows_at_once(*call):
            return self.sessions.answer(operation, call)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.sessions.answer, operation, call)

    async def _end_blocking(self, session: Session) -> None:
        async with session.lock:
            await asyncio.get_running_loop().run_in_executor(self._pool, self.sessions.store.end, session, "expired")
