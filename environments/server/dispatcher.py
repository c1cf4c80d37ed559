"""Where an item is performed: here at once, here in a thread when the world blocks, or in the worker that holds its session."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

from environments.protocol import Reply
from environments.server.metrics import Families
from environments.server.request import RequestError
from environments.server.session import Session
from environments.server.sessions import Sessions
from environments.server.worker_ipc import OtherWorkers, WorkerGoneError

log = logging.getLogger(__name__)

Call = tuple[Any, ...]
"""The arguments of one operation of `Sessions`; the first names the session, except for create."""

THREADS = 64
SLICE_S = 0.01
"""A batch of a fast world gives way to other requests this often."""
SMALL_BATCH = 64
"""Larger batches are performed one after another, so that however many there are, others wait for one slice between two of their turns."""
SWEEP_S = 1.0


class Dispatcher:
    """Performs operations on sessions wherever they live. One per worker process, used from its event loop."""

    def __init__(self, sessions: Sessions, *, worker: int = 0, others: OtherWorkers | None = None) -> None:
        self.sessions = sessions
        self._worker = worker
        self._others = others
        self._turns = itertools.count(worker)
        blocking = getattr(sessions.world, "blocking", False)
        self._awaited = getattr(sessions.world, "awaited", False)
        self._batches = asyncio.Lock()
        self._pool = ThreadPoolExecutor(THREADS, "world") if blocking else None

    async def perform(self, operation: str, calls: Sequence[Call]) -> list[Reply]:
        """One reply per call, in order; calls for one session are performed in order."""
        items = self.sessions.metrics.items
        items[operation] = items.get(operation, 0) + len(calls)
        if self._others is None:
            return await self.perform_here(operation, calls)
        places = [self._place(operation, call) for call in calls]
        if all(place == self._worker for place in places):
            return await self.perform_here(operation, calls)
        replies: list[Reply | None] = [None] * len(calls)

        async def perform_at(place: int) -> None:
            mine = [position for position, at in enumerate(places) if at == place]
            answers = await self._perform_in(place, operation, [calls[position] for position in mine])
            for position, reply in zip(mine, answers, strict=True):
                replies[position] = reply

        await asyncio.gather(*(perform_at(place) for place in set(places)))
        return [reply for reply in replies if reply is not None]

    async def perform_here(self, operation: str, calls: Sequence[Call]) -> list[Reply]:
        """The same, for sessions of this process."""
        if self._pool is not None:
            if len(calls) == 1:
                return [await self._perform_blocking(operation, calls[0])]
            return await asyncio.gather(*(self._perform_blocking(operation, call) for call in calls))
        if len(calls) <= SMALL_BATCH:
            return await self._perform_sliced(operation, calls)
        async with self._batches:
            return await self._perform_sliced(operation, calls)

    async def _perform_sliced(self, operation: str, calls: Sequence[Call]) -> list[Reply]:
        answer = self.sessions.answer
        replies = []
        began = time.perf_counter()
        for call in calls:
            replies.append(answer(operation, call))
            if time.perf_counter() - began > SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return replies

    async def session_counts(self) -> dict[int, int]:
        """Sessions open by worker, of those that answer."""
        counts = {self._worker: len(self.sessions)}
        if self._others is not None:
            counts |= await self._others.ask_all("sessions", int)
        return counts

    async def families(self) -> dict[int, Families]:
        """What was measured, by worker."""
        measured = {self._worker: self.sessions.metrics.families()}
        if self._others is not None:
            measured |= await self._others.ask_all("metrics", Families)
        return measured

    async def sweep(self) -> None:
        """Ends sessions whose lease has run out, for ever."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for session in self.sessions.store.expired():
                if self._pool is None:
                    self.sessions.store.end(session, "expired")
                else:
                    await self._end_blocking(session)

    async def close(self) -> None:
        """Frees every session; a world that blocks gets a second for it, since the process ends anyway."""
        if self._pool is None:
            self.sessions.store.end_all()
            return
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.run_in_executor(None, self.sessions.store.end_all), 1.0)
        except TimeoutError:
            log.warning("the world did not close its sessions in time")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _place(self, operation: str, call: Call) -> int:
        assert self._others is not None
        if operation == "create":
            key = call[2]  # a repeated create must reach the worker that opened its session
            return (next(self._turns) if key is None else crc32(key.encode())) % self._others.workers
        place = self.sessions.store.ids.holder(call[0])
        return self._worker if place is None else place

    async def _perform_in(self, place: int, operation: str, calls: list[Call]) -> list[Reply]:
        assert self._others is not None
        if place == self._worker:
            return await self.perform_here(operation, calls)
        try:
            return await self._others.ask(place, operation, calls, list[Reply])
        except WorkerGoneError:
            if operation == "create":
                return await self.perform_here(operation, calls)
            gone = RequestError(410, "session_ended", "the session has ended: the process that held it is gone", "session")
            return [self.sessions.refused(operation, call, gone) for call in calls]

    async def _perform_blocking(self, operation: str, call: Call) -> Reply:
        session = None if operation == "create" else self.sessions.store.get(call[0])
        if session is None:
            return await self._perform_apart(operation, call)
        async with session.lock:
            return await self._perform_apart(operation, call)

    async def _perform_apart(self, operation: str, call: Call) -> Reply:
        """Waited for by the event loop where the world knows how, else in a thread."""
        if self._awaited and operation != "look":
            return await self.sessions.answer_awaited(operation, call)
        if operation == "look" and self.sessions.shows_at_once(*call):
            return self.sessions.answer(operation, call)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.sessions.answer, operation, call)

    async def _end_blocking(self, session: Session) -> None:
        async with session.lock:
            await asyncio.get_running_loop().run_in_executor(self._pool, self.sessions.store.end, session, "expired")
