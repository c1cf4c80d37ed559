"""Our own dialect under /v1: single and batch calls are one shape, every item is answered by itself, statuses are real."""

from __future__ import annotations

import asyncio
import time
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.environment import Split, World
from environments.protocol import MAX_ITEMS, CloseItem, CreateItem, Replies, Reply, ResetItem, StepItem, TaskList, WorldInfo
from environments.server.dispatcher import Dispatcher
from environments.server.json_api import Operation, answer, decode, encode
from environments.server.openapi import document
from environments.server.sessions import RequestError

ITEMS: dict[str, type[msgspec.Struct]] = {"create": CreateItem, "reset": ResetItem, "step": StepItem, "close": CloseItem}
SPLITS: tuple[Split, ...] = get_args(Split)


def operations(dispatcher: Dispatcher) -> dict[str, Operation]:
    """The dialect's operations by path."""
    return {f"/v1/{name}": _operation(dispatcher, name, item) for name, item in ITEMS.items()}


def _operation(dispatcher: Dispatcher, name: str, item: type[msgspec.Struct]) -> Operation:
    whole = msgspec.json.Decoder(msgspec.defstruct("Items", [("items", list[item])], forbid_unknown_fields=True))  # type: ignore[valid-type]
    parts = msgspec.json.Decoder(msgspec.defstruct("RawItems", [("items", list[msgspec.Raw])], forbid_unknown_fields=True))
    part = msgspec.json.Decoder(item)
    seconds = dispatcher.sessions.metrics.request_seconds("v1", name)

    async def operation(body: bytes) -> tuple[int, bytes]:
        began = time.perf_counter()
        try:
            items: list[Any] = whole.decode(body).items  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # perhaps one item is wrong: the others are still served
            items = [_decoded(part, raw) for raw in decode(parts, body).items]  # type: ignore[attr-defined]
        if len(items) > MAX_ITEMS:
            raise RequestError(413, "too_many_items", f"a request has at most {MAX_ITEMS} items, not {len(items)}", "items")
        calls = [msgspec.structs.astuple(entry) for entry in items if not isinstance(entry, Reply)]
        performed = await dispatcher.perform(name, calls)
        if len(calls) < len(items):
            answers = iter(performed)
            performed = [entry if isinstance(entry, Reply) else next(answers) for entry in items]
        status, replies = _judge(performed)
        content = encode(replies)
        seconds.observe(time.perf_counter() - began)
        return status, content

    return operation


def _decoded(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw) -> Any:
    try:
        return decode(decoder, raw)
    except RequestError as refusal:
        return Reply(status=refusal.status, error=refusal.error)


def _judge(replies: list[Reply]) -> tuple[int, Replies]:
    """Status 200 when any item succeeded or there was none, else the first item's status."""
    for reply in replies:
        if reply.error is None:
            return 200, Replies(replies)
    return (replies[0].status, Replies(replies, replies[0].error)) if replies else (200, Replies())


def routes(world: World) -> list[Route]:
    """What describes the world and the dialect."""
    tasks = {split: list(world.tasks(split)) for split in SPLITS}
    info = WorldInfo(
        world.name,
        world.version,
        world.instruction,
        {split: len(indices) for split, indices in tasks.items()},
        entry=f"{type(world).__module__}:{type(world).__qualname__}",
        rules=getattr(world, "rules", "ours"),
        success_score=getattr(world, "success_score", 1.0),
    )
    openapi = document(world, ITEMS)

    async def describe(_: Request) -> Response:
        return answer(info)

    async def list_tasks(request: Request) -> Response:
        name = request.query_params.get("split", "train")
        try:
            found = TaskList(name, list(world.tasks(name)))
        except KeyError as unknown:
            raise RequestError(422, "invalid_field", str(unknown.args[0])[:1000], "split") from None
        tag = getattr(world, "tag", None)
        if tag is not None and request.query_params.get("tags") == "1":
            found.tags = await asyncio.to_thread(lambda: [tag(index) for index in found.tasks])
        return answer(found)

    async def show_openapi(_: Request) -> Response:
        return answer(openapi)

    return [Route("/v1/world", describe), Route("/v1/tasks", list_tasks), Route("/openapi.json", show_openapi)]
