"""The same TextCraft behind several HTTP servers, 64 clients: is a maintained one within 20 % of ours?

Run: python -m tests.benchmarks.http_servers [ROUNDS]    (those of granian, hypercorn and aiohttp that are installed take part)

Each round measures all of them one after another; what is printed are medians over the rounds and the range of the paired ratios
"ours / other" of steps per second and "other / ours" of the server's CPU per request, above 1 where ours is better.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import statistics
import sys
from typing import Any

from tests.benchmarks.load import Load, served
from tests.benchmarks.textcraft import Play, measure

SERVERS = {"uvicorn": "uvicorn", "granian-asgi": "granian", "granian-rsgi": "granian", "hypercorn": "hypercorn", "aiohttp": "aiohttp"}
"""Names and the packages that they need."""


def serve(name: str, port: int) -> None:
    """Serves TextCraft through the server called `name` until a signal."""
    from environments.registry import load_world
    from environments.server.app import Options, build_app

    api: Any = build_app(load_world("textcraft"), Options())
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
            uvloop.run(_aiohttp(api, port))
    else:
        import uvloop
        from granian.server.embed import Server  # type: ignore[import-not-found]

        target = api if name == "granian-asgi" else _rsgi(api)
        uvloop.run(Server(target, port=port, interface=name.removeprefix("granian-"), websockets=False).serve())


async def _aiohttp(api: Any, port: int) -> None:
    from aiohttp import web

    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path == "/health":
            return web.Response(body=b"{}")
        status, content = await api.perform(request.path, request.method, await request.read())
        return web.Response(status=status, body=content, content_type="application/json")

    runner = web.ServerRunner(web.Server(handle, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _rsgi(api: Any) -> Any:
    async def application(scope: Any, protocol: Any) -> None:
        if scope.path == "/health":
            protocol.response_bytes(200, [], b"{}")
            return
        status, content = await api.perform(scope.path, scope.method, await protocol())
        protocol.response_bytes(status, [("content-type", "application/json")], content)

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
