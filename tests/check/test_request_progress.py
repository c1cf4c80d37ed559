"""Tests of request deadlines: only a vLLM server that generates no tokens counts as stuck."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from aiohttp import web

from tasks.inference import vllm_client
from tasks.inference.server_pool import Replica
from tasks.inference.vllm_client import Completion, ServerUnavailableError, VllmClient

GENERATED = itertools.count(1)


async def completed(
    metrics: Callable[[], str] | None, answer_s: float, max_tokens: int = 1
) -> Completion:
    """Send one request to a slow server, from a client with request_seconds 1.

    Args:
        metrics: Returns the text of the server's metrics page. None for a server without one.
        answer_s: Seconds until the server answers.
        max_tokens: Token budget of the request.

    Returns:
        The server's completion.
    """

    async def complete(_: web.Request) -> web.Response:
        await asyncio.sleep(answer_s)
        choice = {"token_ids": [3], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1}})

    async def serve_metrics(_: web.Request) -> web.Response:
        return web.Response(text=metrics()) if metrics else web.Response(status=404)

    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    application.router.add_get("/metrics", serve_metrics)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    replica = Replica(VllmClient(url, 1.0), url)
    try:
        return await replica.complete(json.dumps({"prompt": [1]}).encode(), max_tokens, 1.0)
    finally:
        await replica.server.close()
        await runner.cleanup()


def growing() -> str:
    return f"vllm:generation_tokens_total {next(GENERATED)}.0\n"


def stalled() -> str:
    return "vllm:generation_tokens_total 7.0\n"


def test_generating_server_has_no_deadline() -> None:
    assert asyncio.run(completed(growing, 4.0)).tokens == [3]


@pytest.mark.parametrize("metrics", [stalled, None])
def test_server_without_progress_is_stuck(metrics: Callable[[], str] | None) -> None:
    with pytest.raises(ServerUnavailableError):
        asyncio.run(completed(metrics, 60.0))


@pytest.mark.parametrize("metrics", [None, lambda: '{"detail": "of a gateway"}'])
def test_deadline_without_metrics_grows_with_the_token_budget(
    metrics: Callable[[], str] | None,
) -> None:
    assert asyncio.run(completed(metrics, 3.0, max_tokens=100)).tokens == [3]


def test_server_that_does_not_take_a_connection_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_client, "CONNECT_S", 0.2)

    async def ask(port: int) -> None:
        replica = Replica(VllmClient(f"http://127.0.0.1:{port}", 1.0), "full")
        try:
            await replica.complete(json.dumps({"prompt": [1]}).encode(), 4, 1.0)
        finally:
            await replica.server.close()

    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)  # and never accepts
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        with pytest.raises(ServerUnavailableError):
            asyncio.run(ask(server.getsockname()[1]))
