"""A proxy in front of an environment server that corrupts a share of its responses.

Example: python -m tests.support.faulty_proxy URL damaged --share 0.1 --seed 0 --port 8001
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
"""The fault of a response.

- late: It is sent after `late_s` seconds.
- lost: The connection is cut before the request reaches the server, or after the server has
  performed it.
- damaged: It is truncated, contains bytes that are not UTF-8, has changed letters or digits, lacks
  an item, or repeats an item.
- swapped: The items of a batch are rotated. A response with one item is replaced by the response to
  an earlier request.
- doubled: The request reaches the server twice, and the next request to the same path also gets
  this response.
"""
FAULTS: tuple[Fault, ...] = get_args(Fault)
FORWARDED = ("authorization", "content-type", "environment-client")
MOST_BYTES = 64 * 2**20


class Answer(NamedTuple):
    """A server's response: status, body, and the content-digest header or ""."""

    status: int
    content: bytes
    digest: str = ""


class FaultyProxy:
    """A proxy that forwards every request. It never corrupts responses of `/health`.

    Attributes:
        answers: Number of responses, without those of `/health`.
        faults: Number of corrupted responses.
    """

    def __init__(
        self, upstream: str, fault: Fault, share: float = 0.1, *, seed: int = 0, late_s: float = 0.6
    ) -> None:
        """
        Args:
            upstream: The server's URL.
            fault: Fault of the corrupted responses.
            share: Probability that a response is corrupted, 0 to 1.
            seed: Seed of the random choices.
            late_s: Delay of a late response in seconds.
        """
        self.answers = self.faults = 0
        self._upstream, self._fault, self._share, self._late_s = upstream, fault, share, late_s
        self._random = random.Random(seed)
        self._earlier: dict[str, tuple[bytes, Answer]] = {}
        """Last request body and response of each path."""
        self._again: dict[str, Answer] = {}
        """Response that the next request to a path gets."""

    async def serve(self, port: int = 0) -> tuple[str, Callable[[], Any]]:
        """Listen on 127.0.0.1, and return the URL and a function that stops the proxy."""
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
        is_corrupted = False
        if request.path != "/health":
            self.answers += 1
            is_corrupted = self._random.random() < self._share
        if is_corrupted and self._fault == "lost" and self._random.random() < 0.5:
            return self._cut(request)
        answer = await self._forward(request, body)
        if is_corrupted and self._fault == "late":
            self.faults += 1
            await asyncio.sleep(self._late_s)
        elif is_corrupted and self._fault == "lost":
            return self._cut(request)
        elif is_corrupted and self._fault == "damaged":
            self.faults += 1
            answer = self._damaged(answer)
        elif self._fault == "swapped":
            answer = self._swapped(request.path, body, answer, is_corrupted)
        elif self._fault == "doubled":
            if (again := self._again.pop(request.path, None)) is not None:
                self.faults += 1
                answer = again
            elif is_corrupted:
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
        ways = [_cut_short, _not_utf8, _with_changed_characters]
        if len(_items(answer.content)) > 0:
            ways += [_without_one_item, _with_repeated_item]
        return self._random.choice(ways)(answer, self._random)

    def _swapped(self, path: str, body: bytes, answer: Answer, is_corrupted: bool) -> Answer:
        earlier = self._earlier.get(path)
        self._earlier[path] = body, answer
        if not is_corrupted:
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
    """Return the response with other items and without the server's digest."""
    return Answer(
        answer.status, json.dumps({**json.loads(answer.content), "items": items}).encode()
    )


def _cut_short(answer: Answer, chance: random.Random) -> Answer:
    return answer._replace(content=answer.content[: chance.randrange(max(1, len(answer.content)))])


def _not_utf8(answer: Answer, chance: random.Random) -> Answer:
    at = chance.randrange(max(1, len(answer.content)))
    return answer._replace(content=answer.content[:at] + b"\xff\xff" + answer.content[at + 2 :])


def _with_changed_characters(answer: Answer, chance: random.Random) -> Answer:
    content = bytearray(answer.content)
    places = [at for at, byte in enumerate(content) if chr(byte).isascii() and chr(byte).isalnum()]
    for at in chance.sample(places, min(8, len(places))):
        content[at] = ord(
            chance.choice("abcxyz") if chr(content[at]).isalpha() else chance.choice("0123456789")
        )
    return answer._replace(content=bytes(content))


def _without_one_item(answer: Answer, chance: random.Random) -> Answer:
    items = _items(answer.content)
    del items[chance.randrange(len(items))]
    return _with_items(answer, items)


def _with_repeated_item(answer: Answer, chance: random.Random) -> Answer:
    items = _items(answer.content)
    return _with_items(answer, [chance.choice(items), *items])


@contextmanager
def faulty_proxy(
    upstream: str, fault: Fault, share: float = 0.1, *, seed: int = 0, late_s: float = 0.6
) -> Iterator[tuple[str, FaultyProxy]]:
    """Run a proxy in a thread until the block ends, and yield its URL and the proxy.

    The arguments are those of `FaultyProxy`.
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
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.faulty_proxy", description=__doc__
    )
    parser.add_argument("upstream", help="URL of the server")
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument(
        "--share",
        type=float,
        default=0.1,
        help="probability of a corrupted response (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--late-s",
        type=float,
        default=0.6,
        help="delay of a late response in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port of the proxy (default: a free port)"
    )
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
