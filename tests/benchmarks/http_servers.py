"""The same TextCraft behind several HTTP servers, 64 clients: is a maintained one within 20 % of ours?

Run: python -m tests.benchmarks.http_servers [ROUNDS]    (those of granian, hypercorn and aiohttp that are installed take part)

Each round measures all of them one after another; what is printed are medians over the rounds and the range of the paired ratios
"ours / other" of steps per second and "other / ours" of the server's CPU per request, above 1 where ours is better. The others only
answer: none of the limits that ours has is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import statistics
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from environments.server.request import Request
from tests.benchmarks.load import Load, served
from tests.benchmarks.textcraft import Play, measure

SERVERS = {"uvicorn": "uvicorn", "granian-asgi": "granian", "granian-rsgi": "granian", "hypercorn": "hypercorn", "aiohttp": "aiohttp"}
"""Names and the packages that they need."""


def serve(name: str, port: int) -> None:
    """Serves TextCraft through the server called `name` until a signal."""
    from environments.registry import load_world
    from environments.server.app import Application, Options

    answer = Application(load_world("textcraft"), Options()).api.answer
    api = _asgi(answer)
    if name == "uvicorn":
        import uvicorn

        options: dict[str, Any] = {"loop": "uvloop", "http": "httptools", "ws": "none", "server_header": False, "date_header": False}
        uvicorn.run(api, port=port, access_log=False, log_level="warning", **options)
    elif name == "hypercorn":
        import uvloop
        from hypercorn.asyncio import serve as hypercorn_serve  # type: ignore[import-not-found]
        from hypercorn.config import Config  # type: ignore[import-not-found]

        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        uvloop.run(hypercorn_serve(api, config))
    elif name == "aiohttp":
        import uvloop

        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(_aiohttp(answer, port))
    else:
        import uvloop
        from granian.server.embed import Server  # type: ignore[import-not-found]

        target = api if name == "granian-asgi" else _rsgi(answer)
        uvloop.run(Server(target, port=port, interface=name.removeprefix("granian-"), websockets=False).serve())


Answered = Callable[[Request], Awaitable[tuple[int, bytes, bytes]]]


def _request(method: str, path: str, body: bytes) -> Request:
    request = Request(method, path.encode(), {}, True, lambda: "127.0.0.1")
    request.body += body
    return request


def _asgi(answer: Answered) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, content, kind = await answer(_request(scope["method"], scope["path"], body))
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return application


async def _aiohttp(answer: Answered, port: int) -> None:
    from aiohttp import web

    async def handle(request: web.BaseRequest) -> web.Response:
        status, content, kind = await answer(_request(request.method, request.path, await request.read()))
        return web.Response(status=status, body=content, headers={"content-type": kind.decode()})

    runner = web.ServerRunner(web.Server(handle, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _rsgi(answer: Answered) -> Any:
    async def application(scope: Any, protocol: Any) -> None:
        status, content, kind = await answer(_request(scope.method, scope.path, await protocol()))
        protocol.response_bytes(status, [("content-type", kind.decode())], content)

    return application


def compare(rounds: int) -> None:
    """Prints the table."""
    names = ["ours", *(name for name, package in SERVERS.items() if importlib.util.find_spec(package))]
    loads: dict[tuple[str, bool], list[Load]] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                served("textcraft")
                if name == "ours"
                else served(name, command=[sys.executable, "-m", "tests.benchmarks.http_servers", name, "{port}"])
            )
            for name in names
        }
        for seed in range(rounds + 1):
            play = Play(seed)
            for name in names:
                measure(servers[name], play, "create", keep_alive=True)
                for keep_alive in (True, False):
                    measure(servers[name], play, "reset", keep_alive=True)
                    loads.setdefault((name, keep_alive), []).append(measure(servers[name], play, "steps", keep_alive=keep_alive))
                measure(servers[name], play, "close", keep_alive=True)
    for keep_alive in (True, False):
        sys.stdout.write(f"{'keep-alive' if keep_alive else 'a new connection per request'}\n")
        ours = loads["ours", keep_alive][1:]
        for name in names:
            theirs = loads[name, keep_alive][1:]
            rates = [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]
            costs = [b.cpu_ms / a.cpu_ms for a, b in zip(ours, theirs, strict=True)]
            sys.stdout.write(
                f"  {name:13} {statistics.median(load.rate for load in theirs):7.0f} steps/s, ours / it {_range(rates)};  "
                f"CPU {statistics.median(load.cpu_ms for load in theirs) * 1000:4.0f} us, it / ours {_range(costs)}\n"
            )


def _range(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve(sys.argv[1], int(sys.argv[2]))
    else:
        compare(int(sys.argv[1]) if len(sys.argv) == 2 else 5)
