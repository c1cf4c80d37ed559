"""Our own dialect under /v1.

Single and batch calls have the same form, every item has its own reply, and statuses are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.environment import SPLITS, World
from environments.protocol import (
    MAX_ITEMS,
    CloseItem,
    CreateItem,
    Int64,
    Key,
    Replies,
    Reply,
    ResetItem,
    SessionId,
    StepItem,
    TaskList,
    WorldInfo,
)
from environments.server.answers import answer, body_of, decode, encode
from environments.server.dispatcher import SLICE_S, Dispatcher
from environments.server.errors import RequestError
from environments.server.guard import client_of
from environments.server.openapi import document

ITEMS: dict[str, type[msgspec.Struct]] = {
    "step": StepItem,
    "create": CreateItem,
    "reset": ResetItem,
    "close": CloseItem,
}
MAX_COMMAS = 4 * MAX_ITEMS
"""Most commas of a request. A valid item accounts for at most three, inner commas included."""


class ItemNames(msgspec.Struct):
    """Fields that a reply repeats. They are read even if other fields of the item are invalid."""

    session: SessionId | None = None
    turn: Int64 | None = None
    key: Key | None = None


_names = msgspec.json.Decoder(ItemNames)
_parts = msgspec.json.Decoder(
    msgspec.defstruct("RawItems", [("items", list[msgspec.Raw])], forbid_unknown_fields=True)
)


def routes(dispatcher: Dispatcher) -> list[Route]:
    """Return the operations of the dialect and the pages that describe the world."""
    operations = [
        Route(f"/v1/{name}", _operation(dispatcher, name, item), methods=["POST"])
        for name, item in ITEMS.items()
    ]
    return operations + _pages(dispatcher.sessions.world)


def _operation(dispatcher: Dispatcher, name: str, item: type[msgspec.Struct]) -> Any:
    items = [("items", list[item])]  # type: ignore[valid-type]
    whole = msgspec.json.Decoder(msgspec.defstruct("Items", items, forbid_unknown_fields=True))
    part = msgspec.json.Decoder(item)

    async def operation(request: Request) -> Response:
        body = await body_of(request)
        items: list[Any]
        if commas_outside_strings(body, MAX_COMMAS) >= MAX_COMMAS:
            raise _too_many("more than could be told apart")
        try:
            items = whole.decode(body).items  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # If only one item is invalid, the others are still served.
            raws = decode(_parts, body).items  # type: ignore[attr-defined]
            if len(raws) > MAX_ITEMS:
                raise _too_many(str(len(raws))) from None
            items = await _decoded(part, raws)
        if len(items) > MAX_ITEMS:
            raise _too_many(str(len(items)))
        client = client_of(request)
        calls = [msgspec.structs.astuple(entry) for entry in items if not isinstance(entry, Reply)]
        if name == "create":
            calls = [(*call, False, client) for call in calls]
        performed = await dispatcher.perform(name, calls, client, request.is_disconnected)
        if len(calls) < len(items):
            answers = iter(performed)
            performed = [entry if isinstance(entry, Reply) else next(answers) for entry in items]
        return _answered(performed)

    return operation


async def _decoded(decoder: msgspec.json.Decoder[Any], raws: list[msgspec.Raw]) -> list[Any]:
    """Decode the items.

    An invalid item becomes its error reply. Yield to other requests in between.
    """
    items: list[Any] = []
    began = time.perf_counter()
    for raw in raws:
        try:
            items.append(decode(decoder, raw))
        except RequestError as refusal:
            reply = Reply(status=refusal.status, error=refusal.error)
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                named = _names.decode(raw)
                reply.session, reply.turn, reply.key = named.session, named.turn, named.key
            items.append(reply)
        if time.perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return items


def commas_outside_strings(body: bytes, enough: int) -> int:
    """Count the commas outside strings, an upper bound on the items of a JSON text before decoding.

    It takes milliseconds for the largest body, regardless of its content. Counting may stop at
    `enough`. It does so if there are more strings than the commas of a sensible request could
    separate.

    Args:
        body: The JSON text.
        enough: Count at which the request is rejected.
    """
    commas = body.count(b",")
    if commas < enough:
        return commas
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * enough:
        return enough
    return sum(part.count(b",") for part in bare.split(b'"')[::2])


def _too_many(count: str) -> RequestError:
    return RequestError(
        413, "too_many_items", f"a request has at most {MAX_ITEMS} items, not {count}", "items"
    )


def _answered(replies: list[Reply]) -> Response:
    """Return the whole answer.

    The status is 200 if any item succeeded or there was none, otherwise the first item's status.
    """
    if not replies or any(reply.error is None for reply in replies):
        return answer(encode(Replies(replies)))
    return answer(encode(Replies(replies, replies[0].error)), replies[0].status)


def _pages(world: World) -> list[Route]:
    tasks = {split: list(world.tasks(split)) for split in SPLITS}
    description = WorldInfo(
        world.name,
        world.version,
        world.instruction,
        {split: len(indices) for split, indices in tasks.items()},
        entry=f"{type(world).__module__}:{type(world).__qualname__}",
        rules=world.rules,
        success_score=world.success_score,
        reward_range=world.reward_range,
        tools=list(world.tools),
        member_tools=[list(each) for each in world.tool_lists] if len(world.tool_lists) > 1 else [],
    )
    info, openapi = encode(description), encode(document(world, ITEMS))

    async def describe(_: Request) -> Response:
        return answer(info)

    # Encoded once, so that it is in memory once, even if many clients do not read their answer.
    @functools.lru_cache(maxsize=16)
    def listed(name: str, tagged: bool) -> bytes:
        found = TaskList(name, list(world.tasks(name)))
        if tagged:
            tags = [world.tag(index) for index in found.tasks]
            found.tags = tags if any(tags) else []
        return encode(found)

    async def list_tasks(request: Request) -> Response:
        tagged = request.query_params.get("tags") == "1"
        try:
            name = request.query_params.get("split", "train")
            return answer(
                await asyncio.to_thread(listed, name, tagged) if tagged else listed(name, tagged)
            )
        except KeyError as unknown:
            raise RequestError(422, "invalid_field", str(unknown.args[0])[:1000], "split") from None

    async def show_openapi(_: Request) -> Response:
        return answer(openapi)

    return [
        Route("/v1/world", describe),
        Route("/v1/tasks", list_tasks),
        Route("/openapi.json", show_openapi),
    ]
