"""Tests of the request batcher: shared requests, cancelled calls, faults and deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from environments.errors import DeadlineExceededError, EnvironmentCallError, UnreachableError
from environments.protocol import CloseItem, Reply
from environments.request_batcher import MAX_BATCH, RequestBatcher


@dataclass
class Server:
    """A server that answers each item with its session's name after `open` is set."""

    requests: list[list[str]] = field(default_factory=list)
    fault: EnvironmentCallError | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(
        self, operation: str, items: Sequence[msgspec.Struct], deadline: float
    ) -> list[Reply]:
        names = [item.session for item in items if isinstance(item, CloseItem)]
        self.requests.append(names)
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        return [Reply(200, observation=name) for name in names]


def soon() -> float:
    return time.monotonic() + 60


def ask(batcher: RequestBatcher, name: str, deadline: float | None = None) -> asyncio.Task[Reply]:
    return asyncio.ensure_future(batcher.ask("close", CloseItem(name), deadline or soon()))


def test_concurrent_calls_share_a_request_and_each_gets_its_own_reply() -> None:
    async def play() -> None:
        server = Server()
        server.open.set()
        batcher = RequestBatcher(server.send)
        replies = await asyncio.gather(*(ask(batcher, name) for name in "abc"))
        assert [reply.observation for reply in replies] == ["a", "b", "c"]
        assert (await ask(batcher, "d")).observation == "d"
        assert server.requests == [["a", "b", "c"], ["d"]]

    asyncio.run(play())


def test_request_has_at_most_max_batch_items() -> None:
    async def play() -> None:
        server = Server()
        server.open.set()
        batcher = RequestBatcher(server.send)
        names = [str(number) for number in range(2 * MAX_BATCH + 1)]
        replies = await asyncio.gather(*(ask(batcher, name) for name in names))
        assert [reply.observation for reply in replies] == names
        assert [len(request) for request in server.requests] == [MAX_BATCH, MAX_BATCH, 1]

    asyncio.run(play())


def test_cancelled_call_does_not_affect_the_others() -> None:
    async def play() -> None:
        server = Server()
        batcher = RequestBatcher(server.send)
        tasks = [ask(batcher, name) for name in "abc"]
        while not server.requests:  # noqa: ASYNC110 - one iteration of the event loop
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        server.open.set()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(replies[1], asyncio.CancelledError)
        assert [reply.observation for reply in replies if isinstance(reply, Reply)] == ["a", "c"]

    asyncio.run(play())


def test_a_fault_of_the_request_reaches_all_its_calls() -> None:
    async def play() -> None:
        server = Server(fault=UnreachableError("nobody there", sent=False))
        server.open.set()
        batcher = RequestBatcher(server.send)
        faults = await asyncio.gather(
            *(ask(batcher, name) for name in "ab"), return_exceptions=True
        )
        assert [(type(fault), str(fault), vars(fault)) for fault in faults] == [
            (UnreachableError, "nobody there", {"sent": False})
        ] * 2

    asyncio.run(play())


def test_a_call_waits_no_longer_than_its_own_deadline() -> None:
    async def play() -> None:
        server = Server()
        batcher = RequestBatcher(server.send)
        patient, hasty = ask(batcher, "a"), ask(batcher, "b", time.monotonic() + 0.01)
        with pytest.raises(DeadlineExceededError):
            await hasty
        assert not patient.done()
        server.open.set()
        assert (await patient).observation == "a"

    asyncio.run(play())
