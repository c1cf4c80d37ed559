"""A stand-in for a vLLM server, with a policy that counts.

It has the routes that the engine uses and starts quickly, so that tests can kill it often. Run it
as `python -m tests.support.completion_server PORT`. A prompt is [goal, 1, 7, 2, 7, ...]: the goal,
then each turn's number and the environment's answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

THINKING_S = 0.01

Handler = Callable[[Request], Awaitable[JSONResponse]]


def next_number(prompt: list[int], seed: int) -> int:
    """Return the number that the policy adds: 1, 2 or 3 by the seed, without exceeding the goal."""
    remaining = prompt[0] - sum(prompt[1::2])
    drawn = hashlib.sha256(f"{prompt} {seed}".encode()).digest()[0] % 3 + 1
    return max(1, min(remaining, drawn))


async def complete(request: Request) -> JSONResponse:
    body: dict[str, Any] = json.loads(await request.body())
    await asyncio.sleep(THINKING_S)
    if "allowed_token_ids" in body:
        return answer([2], [0.0], 1)
    number = next_number(body["prompt"], body["seed"])
    return answer([number], [-float(number)], len(body["prompt"]))


def answer(tokens: list[int], log_probabilities: list[float], prompt_tokens: int) -> JSONResponse:
    choice = {
        "token_ids": tokens,
        "logprobs": {"token_logprobs": log_probabilities},
        "finish_reason": "stop",
    }
    return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": prompt_tokens}})


async def models(_: Request) -> JSONResponse:
    return JSONResponse({"data": [{"id": "counter", "root": "counter", "max_model_len": 4096}]})


async def health(_: Request) -> JSONResponse:
    return JSONResponse({})


def application(complete: Handler = complete) -> Starlette:
    """Return the server's application, with another handler of completions if one is given."""
    return Starlette(
        routes=[
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(
        application(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        backlog=4096,
    )
