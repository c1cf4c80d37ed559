"""Perform the items of a request, so that no client keeps another waiting.

Calls wait for turns that clients share fairly. If a client disconnects, its calls that have not
started are dropped, except that its sessions are still closed. A call that has started always
finishes, so that a repeated turn gets the answer of its execution.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect

from environments.protocol import Reply
from environments.server.errors import RequestError
from environments.server.fair_turns import FairTurns
from environments.server.sessions import Sessions

log = logging.getLogger(__name__)

Call = tuple[Any, ...]
"""Arguments of one operation of `Sessions`. The first is the session, except for create."""
Gone = Callable[[], Awaitable[bool]]
"""Returns whether the client of a request has disconnected."""

CALLS = 64
"""Most calls of a blocking world at once."""
SLICE_S = 0.01
"""Seconds of work after which a batch yields to other requests."""
SWEEP_S = 1.0
END_S = 1.0


class Dispatcher:
    """Perform operations on sessions, used from one event loop."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._turns = FairTurns(CALLS if sessions.world.blocking else 1)

    async def perform(
        self, operation: str, calls: Sequence[Call], client: str, gone: Gone
    ) -> list[Reply]:
        """Return one reply per call, in order. Calls for one session are performed in order.

        Args:
            operation: An operation of `Sessions`.
            calls: The arguments of each call.
            client: (address, space, name) of the client whose turns are used.
            gone: Returns whether the client has disconnected.

        Raises:
            ClientDisconnect: The client has disconnected. The remaining calls are dropped.
        """
        self.sessions.metrics.items.labels(operation).inc(len(calls))
        if self.sessions.world.blocking:
            return await self._perform_blocking(operation, calls, client, gone)
        if len(calls) == 1 and not self._turns.ending:
            return [await self.sessions.answer(operation, calls[0])]
        replies: list[Reply] = []
        try:
            while len(replies) < len(calls):
                async with self._turns.of(client):
                    await _check_present(operation, gone)
                    began = time.perf_counter()
                    for call in itertools.islice(calls, len(replies), None):
                        replies.append(await self.sessions.answer(operation, call))
                        if time.perf_counter() - began > SLICE_S:
                            break
                    await asyncio.sleep(0)  # other requests run before the next client's turn
        except RequestError as refusal:
            replies += [
                self.sessions.refused(operation, call, refusal) for call in calls[len(replies) :]
            ]
        return replies

    def end(self) -> None:
        """Reject calls that have not started, from now on. Started calls are still answered."""
        self._turns.end()

    async def sweep(self) -> None:
        """End sessions whose lease has run out, in an endless loop, independently of each other."""
        async with asyncio.TaskGroup() as ending:
            while True:
                await asyncio.sleep(SWEEP_S)
                for session in self.sessions.expired():
                    ending.create_task(self.sessions.end(session, "expired"))

    async def close(self) -> None:
        """End every session. The world gets a second for it, since the process ends anyway."""
        try:
            await asyncio.wait_for(self.sessions.end_all(), END_S)
        except TimeoutError:
            log.warning("the world did not close its sessions in time")

    async def _perform_blocking(
        self, operation: str, calls: Sequence[Call], client: str, gone: Gone
    ) -> list[Reply]:
        replies: dict[int, Reply] = {}
        by_session: dict[Any, list[int]] = {}
        for position, call in enumerate(calls):
            by_session.setdefault(position if operation == "create" else call[0], []).append(
                position
            )

        async def perform(positions: list[int]) -> None:
            began = time.perf_counter()
            for position in positions:
                replies[position] = await self._perform_one(
                    operation, calls[position], client, gone
                )
                if time.perf_counter() - began > SLICE_S:
                    await asyncio.sleep(0)  # rejected calls never wait, so yield here
                    began = time.perf_counter()

        await asyncio.gather(*(perform(positions) for positions in by_session.values()))
        return [replies[position] for position in range(len(calls))]

    async def _perform_one(self, operation: str, call: Call, client: str, gone: Gone) -> Reply:
        """Perform a call once its session is free and its client has a turn."""
        session = None if operation == "create" else self.sessions.get(call[0])
        if session is None and operation != "create":
            return await self.sessions.answer(operation, call)
        try:
            async with (
                session.lock if session is not None else contextlib.nullcontext(),
                self._turns.of(client),
            ):
                await _check_present(operation, gone)
                return await self.sessions.answer(operation, call)
        except RequestError as refusal:
            return self.sessions.refused(operation, call, refusal)


async def _check_present(operation: str, gone: Gone) -> None:
    if operation != "close" and await gone():
        raise ClientDisconnect
