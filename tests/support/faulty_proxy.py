"""A proxy in front of an environment server that spoils a share of its answers in one way.

As a command: python -m tests.support.faulty_proxy URL damaged --share 0.1 --seed 0 --port 8001
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import aiohttp
from aiohttp import web

Fault = Literal["late", "lost", "damaged", "swapped", "doubled"]
"""How an answer is spoiled.

late: it is sent after `late_s` seconds.
lost: the connection is cut, before the request reaches the server or after the server has performed
it.
damaged: it is cut short, has bytes that are not UTF-8, has another letter or digit, lacks an item,
or has an item twice.
swapped: the items of a batch change places, and an answer with one item is replaced by the answer
to another request.
doubled: the request reaches the server twice, and the next request with the same path gets this
answer, too.
"""
FAULTS: tuple[Fault, ...] = get_args(Fault)
FORWARDED = ("authorization", "content-type", "environment-client")
MOST_BYTES = 64 * 2**20


class Answer(NamedTuple):
    """A server's answer: status, body, and the header content-digest, if it has one."""

    status: int
    content: bytes
    digest: str = ""


class FaultyProxy:
    """Forwards every request. `/health` is never spoiled.

    Attributes:
        answers: Answers that could have been spoiled.
        faults: Answers that were spoiled.
    """

    def __init__(
        self, upstream: str, fault: Fault, share: float = 0.1, *, seed: int = 0, late_s: float = 0.6
    ) -> None:
        """
        Args:
            upstream: The server's URL.
            fault: How an answer is spoiled.
            share: The probability that an answer is spoiled, 0 to 1.
            seed: Seed of the choice of answers.
            late_s: Seconds by which a late answer is delayed.
        """
        self.answers = self.faults = 0
        self._upstream, self._fault, self._share, self._late_s = upstream, fault, share, late_s
        self._random = random.Random(seed)
        self._earlier: dict[str, tuple[bytes, Answer]] = {}
        """The last request body and answer of each path."""
        self._again: dict[str, Answer] = {}
        """The answer that the next request of a path gets."""

    async def serve(self, port: int = 0) -> tuple[str, Callable[[], Any]]:
        """Listens on 127.0.0.1; returns the URL and what ends the proxy."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()

        async def end() -> None:
            await runner.cleanup()
            await self._http.close()

        return f"http://127.0.0.1:{runner.addresses[0][1]}", end

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        spoilt = False
        if request.path != "/health":
            self.answers += 1
            spoilt = self._random.random() < self._share
        if spoilt and self._fault == "lost" and self._random.random() < 0.5:
            return self._cut(request)
        answer = await self._forward(request, body)
        if spoilt and self._fault == "late":
            self.faults += 1
            await asyncio.sleep(self._late_s)
        elif spoilt and self._fault == "lost":
            return self._cut(request)
        elif spoilt and self._fault == "damaged":
            self.faults += 1
            answer = self._damaged(answer)
        elif self._fault == "swapped":
            answer = self._swapped(request.path, body, answer, spoilt)
        elif self._fault == "doubled":
            if (again := self._again.pop(request.path, None)) is not None:
                self.faults += 1
                answer = again
            elif spoilt:
                answer = self._again[request.path] = await self._forward(request, body)
        headers = {"content-type": "application/json"} | (
            {"content-digest": answer.digest} if answer.digest else {}
        )
        return web.Response(status=answer.status, body=answer.content, headers=headers)

    async def _forward(self, request: web.Request, body: bytes) -> Answer:
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        try:
            async with self._http.request(
                request.method, self._upstream + request.path_qs, data=body or None, headers=headers
            ) as answer:
                return Answer(
                    answer.status, await answer.read(), answer.headers.get("content-digest", "")
                )
        except aiohttp.ClientError:
            return Answer(502, b"the server cannot be reached")

    def _cut(self, request: web.Request) -> web.StreamResponse:
        self.faults += 1
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _damaged(self, answer: Answer) -> Answer:
        ways = [_cut_short, _not_utf8, _with_another_letter]
        if len(_items(answer.content)) > 0:
            ways += [_without_an_item, _with_an_item_twice]
        return self._random.choice(ways)(answer, self._random)

    def _swapped(self, path: str, body: bytes, answer: Answer, spoilt: bool) -> Answer:
        earlier = self._earlier.get(path)
        self._earlier[path] = body, answer
        if not spoilt:
            return answer
        items = _items(answer.content)
        if len(items) > 1:
            self.faults += 1
            return _with_items(answer, [*items[1:], items[0]])
        if earlier is not None and earlier[0] != body:
            self.faults += 1
            return earlier[1]
        return answer


def _items(content: bytes) -> list[Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return []
    return (
        found["items"] if isinstance(found, dict) and isinstance(found.get("items"), list) else []
    )


def _with_items(answer: Answer, items: list[Any]) -> Answer:
    """The answer with other items, written anew: without the server's digest."""
    return Answer(
        answer.status, json.dumps({**json.loads(answer.content), "items": items}).encode()
    )


def _cut_short(answer: Answer, chance: random.Random) -> Answer:
    return answer._replace(content=answer.content[: chance.randrange(max(1, len(answer.content)))])


def _not_utf8(answer: Answer, chance: random.Random) -> Answer:
    at = chance.randrange(max(1, len(answer.content)))
    return answer._replace(content=answer.content[:at] + b"\xff\xff" + answer.content[at + 2 :])


def _with_another_letter(answer: Answer, chance: random.Random) -> Answer:
    content = bytearray(answer.content)
    places = [at for at, byte in enumerate(content) if chr(byte).isascii() and chr(byte).isalnum()]
    for at in chance.sample(places, min(8, len(places))):
        content[at] = ord(
            chance.choice("abcxyz") if chr(content[at]).isalpha() else chance.choice("0123456789")
        )
    return answer._replace(content=bytes(content))


def _without_an_item(answer: Answer, chance: random.Random) -> Answer:
    items = _items(answer.content)
    del items[chance.randrange(len(items))]
    return _with_items(answer, items)


def _with_an_item_twice(answer: Answer, chance: random.Random) -> Answer:
    items = _items(answer.content)
    return _with_items(answer, [chance.choice(items), *items])


@contextmanager
def faulty_proxy(
    upstream: str, fault: Fault, share: float = 0.1, *, seed: int = 0, late_s: float = 0.6
) -> Iterator[tuple[str, FaultyProxy]]:
    """A proxy in a thread of this process while the block lasts: its URL and its counts.

    See `FaultyProxy`.
    """
    proxy = FaultyProxy(upstream, fault, share, seed=seed, late_s=late_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="faulty-proxy", daemon=True)
    thread.start()
    try:
        url, end = asyncio.run_coroutine_threadsafe(proxy.serve(), loop).result(30)
        try:
            yield url, proxy
        finally:
            asyncio.run_coroutine_threadsafe(end(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _serve_forever(proxy: FaultyProxy, port: int) -> None:
    url, _ = await proxy.serve(port)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.faulty_proxy", description=__doc__
    )
    parser.add_argument("upstream", help="URL of the server")
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument(
        "--share",
        type=float,
        default=0.1,
        help="probability of a spoiled answer (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--late-s", type=float, default=0.6, help="delay of a late answer (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    given = parser.parse_args()
    asyncio.run(
        _serve_forever(
            FaultyProxy(
                given.upstream, given.fault, given.share, seed=given.seed, late_s=given.late_s
            ),
            given.port,
        )
    )


if __name__ == "__main__":
    main()
