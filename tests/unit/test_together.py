from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from environments.protocol import CloseItem, Reply
from environments.together import MOST, Together
from environments.transport import DeadlineExceeded, EnvironmentFault, Unreachable


@dataclass
class Server:
    """Answers each item with its session's name, when it is let."""

    requests: list[list[str]] = field(default_factory=list)
    fault: EnvironmentFault | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, operation: str, items: Sequence[msgspec.Struct], deadline: float) -> list[Reply]:
        names = [item.session for item in items if isinstance(item, CloseItem)]
        self.requests.append(names)
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        return [Reply(200, observation=name) for name in names]


def soon() -> float:
    return time.monotonic() + 60


def ask(together: Together, name: str, deadline: float | None = None) -> asyncio.Task[Reply]:
    return asyncio.ensure_future(together.ask("close", CloseItem(name), deadline or soon()))


def test_calls_of_one_turn_share_a_request_and_each_gets_its_own_reply() -> None:
    async def play() -> None:
        server = Server()
        server.open.set()
        together = Together(server.send)
        replies = await asyncio.gather(*(ask(together, name) for name in "abc"))
        assert [reply.observation for reply in replies] == ["a", "b", "c"]
        assert (await ask(together, "d")).observation == "d"
        assert server.requests == [["a", "b", "c"], ["d"]]

    asyncio.run(play())


def test_a_request_holds_so_many_items_and_no_more() -> None:
    async def play() -> None:
        server = Server()
        server.open.set()
        together = Together(server.send)
        names = [str(number) for number in range(2 * MOST + 1)]
        replies = await asyncio.gather(*(ask(together, name) for name in names))
        assert [reply.observation for reply in replies] == names
        assert [len(request) for request in server.requests] == [MOST, MOST, 1]

    asyncio.run(play())


def test_who_is_cancelled_leaves_the_others_their_replies() -> None:
    async def play() -> None:
        server = Server()
        together = Together(server.send)
        tasks = [ask(together, name) for name in "abc"]
        while not server.requests:  # noqa: ASYNC110 - turns of the loop
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
        server = Server(fault=Unreachable("nobody there"))
        server.open.set()
        together = Together(server.send)
        faults = await asyncio.gather(*(ask(together, name) for name in "ab"), return_exceptions=True)
        assert [(type(fault), str(fault)) for fault in faults] == [(Unreachable, "nobody there")] * 2

    asyncio.run(play())


def test_a_call_waits_no_longer_than_its_own_deadline() -> None:
    async def play() -> None:
        server = Server()
        together = Together(server.send)
        patient, hasty = ask(together, "a"), ask(together, "b", time.monotonic() + 0.01)
        with pytest.raises(DeadlineExceeded):
            await hasty
        assert not patient.done()
        server.open.set()
        assert (await patient).observation == "a"

    asyncio.run(play())
