"""Our own dialect under /v1: single and batch calls are one shape, every item is answered by itself, statuses are real."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.environment import Split, World
from environments.protocol import MAX_ITEMS, CloseItem, CreateItem, Replies, Reply, ResetItem, StepItem, TaskList, WorldInfo
from environments.server.host import Host
from environments.server.openapi import document
from environments.server.sessions import Refusal
from environments.server.web import answer, decode, read_body

OPERATIONS: dict[str, type[msgspec.Struct]] = {"create": CreateItem, "reset": ResetItem, "step": StepItem, "close": CloseItem}
SPLITS: tuple[Split, ...] = get_args(Split)

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(host: Host, world: World) -> list[Route]:
    """The routes of the dialect."""
    tasks = {split: list(world.tasks(split)) for split in SPLITS}
    info = WorldInfo(world.name, world.version, world.instruction, {split: len(indices) for split, indices in tasks.items()})
    openapi = document(world, OPERATIONS)

    async def describe(_: Request) -> Response:
        return answer(info)

    async def list_tasks(request: Request) -> Response:
        split = request.query_params.get("split", "train")
        if split not in tasks:
            raise Refusal(422, "invalid_field", f"split is one of {', '.join(SPLITS)}, not {split[:40]!r}", "split")
        return answer(TaskList(split, tasks[split]))

    async def show_openapi(_: Request) -> Response:
        return answer(openapi)

    return [
        *(Route(f"/v1/{name}", _endpoint(host, name, item), methods=["POST"]) for name, item in OPERATIONS.items()),
        Route("/v1/world", describe),
        Route("/v1/tasks", list_tasks),
        Route("/openapi.json", show_openapi),
    ]


def _endpoint(host: Host, operation: str, item: type[msgspec.Struct]) -> Endpoint:
    whole = msgspec.json.Decoder(msgspec.defstruct("Items", [("items", list[item])], forbid_unknown_fields=True))  # type: ignore[valid-type]
    parts = msgspec.json.Decoder(msgspec.defstruct("RawItems", [("items", list[msgspec.Raw])], forbid_unknown_fields=True))
    part = msgspec.json.Decoder(item)
    seconds = host.sessions.metrics.request_seconds.labels("v1", operation)

    async def handle(request: Request) -> Response:
        body = await read_body(request)
        began = time.perf_counter()
        try:
            items: list[Any] = whole.decode(body).items  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # at least one item is wrong: the others are still served
            items = [_decoded(part, raw) for raw in decode(parts, body).items]  # type: ignore[attr-defined]
        if len(items) > MAX_ITEMS:
            raise Refusal(413, "too_many_items", f"a request has at most {MAX_ITEMS} items, not {len(items)}", "items")
        calls = [msgspec.structs.astuple(entry) for entry in items if not isinstance(entry, Reply)]
        performed = iter(await host.perform(operation, calls))
        replies = [entry if isinstance(entry, Reply) else next(performed) for entry in items]
        response = _answer(replies)
        seconds.observe(time.perf_counter() - began)
        return response

    return handle


def _decoded(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw) -> Any:
    try:
        return decode(decoder, raw)
    except Refusal as refusal:
        return Reply(status=refusal.status, error=refusal.error)


def _answer(replies: list[Reply]) -> Response:
    """Status 200 when any item succeeded or there was none, else the first item's status."""
    if replies and replies[0].error is not None and all(reply.error is not None for reply in replies):
        return answer(Replies(replies, replies[0].error), replies[0].status)
    return answer(Replies(replies))
