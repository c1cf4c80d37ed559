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
from environments.server.dispatcher import SLICE_S, Dispatcher
from environments.server.json_api import Answer, Operation, Page, commas_outside_strings, decode, encode
from environments.server.openapi import document
from environments.server.request import Request, RequestError

ITEMS: dict[str, type[msgspec.Struct]] = {"create": CreateItem, "reset": ResetItem, "step": StepItem, "close": CloseItem}
MAX_COMMAS = 4 * MAX_ITEMS
"""Most commas of a request. A valid item accounts for at most three, inner commas included."""


def operations(dispatcher: Dispatcher) -> dict[str, Operation]:
    """Return the dialect's operations by path."""
    return {f"/v1/{name}": _operation(dispatcher, name, item) for name, item in ITEMS.items()}


def _operation(dispatcher: Dispatcher, name: str, item: type[msgspec.Struct]) -> Operation:
    whole = msgspec.json.Decoder(msgspec.defstruct("Items", [("items", list[item])], forbid_unknown_fields=True))  # type: ignore[valid-type]
    parts = msgspec.json.Decoder(msgspec.defstruct("RawItems", [("items", list[msgspec.Raw])], forbid_unknown_fields=True))
    part, names = msgspec.json.Decoder(item), msgspec.json.Decoder(ItemNames)
    seconds = dispatcher.sessions.metrics.request_seconds("v1", name)

    async def operation(request: Request) -> Answer:
        began = time.perf_counter()
        body = bytes(request.body)
        if commas_outside_strings(body, MAX_COMMAS) >= MAX_COMMAS:
            raise _too_many("more than could be told apart")
        try:
            items: list[Any] = whole.decode(body).items  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # If only one item is invalid, the others are still served.
            raws = decode(parts, body).items  # type: ignore[attr-defined]
            if len(raws) > MAX_ITEMS:
                raise _too_many(str(len(raws))) from None
            items = await _decoded(part, names, raws)
        if len(items) > MAX_ITEMS:
            raise _too_many(str(len(items)))
        calls = [msgspec.structs.astuple(entry) for entry in items if not isinstance(entry, Reply)]
        client = request.client
        if name == "create":
            calls = [(*call, False, client) for call in calls]
        performed = await dispatcher.perform(name, calls, client)
        if len(calls) < len(items):
            answers = iter(performed)
            performed = [entry if isinstance(entry, Reply) else next(answers) for entry in items]
        status, replies = _judge(performed)
        content = encode(replies)
        seconds.observe(time.perf_counter() - began)
        return status, content

    return operation


class ItemNames(msgspec.Struct):
    """Fields that a reply repeats. They are read even if other fields of the item are invalid."""

    session: SessionId | None = None
    turn: Int64 | None = None
    key: Key | None = None


async def _decoded(decoder: msgspec.json.Decoder[Any], names: msgspec.json.Decoder[ItemNames], raws: list[msgspec.Raw]) -> list[Any]:
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
                named = names.decode(raw)
                reply.session, reply.turn, reply.key = named.session, named.turn, named.key
            items.append(reply)
        if time.perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return items


def _too_many(count: str) -> RequestError:
    return RequestError(413, "too_many_items", f"a request has at most {MAX_ITEMS} items, not {count}", "items")


def _judge(replies: list[Reply]) -> tuple[int, Replies]:
    """Return the status and body of the whole answer.

    The status is 200 if any item succeeded or there was none, otherwise the first item's status.
    """
    for reply in replies:
        if reply.error is None:
            return 200, Replies(replies)
    return (replies[0].status, Replies(replies, replies[0].error)) if replies else (200, Replies())


def pages(world: World) -> dict[str, Page]:
    """Return the pages that describe the world and the dialect."""
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
    )
    info, openapi = encode(description), encode(document(world, ITEMS))

    async def describe(_: dict[str, str]) -> Answer:
        return 200, info

    # Encoded once, so that it is in memory once, even if many clients do not read their answer.
    @functools.lru_cache(maxsize=16)
    def listed(name: str, tagged: bool) -> bytes:
        found = TaskList(name, list(world.tasks(name)))
        if tagged:
            tags = [world.tag(index) for index in found.tasks]
            found.tags = tags if any(tags) else []
        return encode(found)

    async def list_tasks(query: dict[str, str]) -> Answer:
        tagged = query.get("tags") == "1"
        try:
            name = query.get("split", "train")
            return 200, await asyncio.to_thread(listed, name, tagged) if tagged else listed(name, tagged)
        except KeyError as unknown:
            raise RequestError(422, "invalid_field", str(unknown.args[0])[:1000], "split") from None

    async def show_openapi(_: dict[str, str]) -> Answer:
        return 200, openapi

    return {"/v1/world": describe, "/v1/tasks": list_tasks, "/openapi.json": show_openapi}
