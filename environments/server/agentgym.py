"""AgentGym's dialect at the root paths, so that AgentGym's unchanged clients work with our servers.

Sessions have leases, as in our dialect, but integer ids. Errors have real HTTP statuses with a body
{"error": text}. AgentGym's clients require status 200, so they raise at the error itself rather
than one line later at a missing field.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from environments.environment import World
from environments.protocol import Reply
from environments.server.agentgym_dialects import DIALECTS, Dialect
from environments.server.dispatcher import Call, Dispatcher
from environments.server.json_api import Answer, Operation, Page, decode, encode
from environments.server.request import Request, RequestError


def _showing(show: Callable[[str], Any]) -> Callable[[Reply], Any]:
    """Return a function that builds a view's answer from the text of a `look` reply."""
    return lambda reply: show(reply.observation or "")


def _detail(reply: Reply) -> dict[str, Any]:
    return {"observation": reply.observation, "reward": reply.reward or 0, "done": bool(reply.done), "deleted": False}


VIEWERS = " "
"""The client name of all GET requests. All viewers share one client's turns."""
Perform = Callable[[Dialect, Any, str], Awaitable[Any]]
"""Maps the dialect, a request's body and its client to the reply."""


class AgentGym:
    """AgentGym's dialect of one world.

    A world without an entry in DIALECTS has no operation or route.
    """

    def __init__(self, dispatcher: Dispatcher, world: World) -> None:
        self._dispatcher = dispatcher
        self._dialect = DIALECTS.get(world.name)
        # AgentGym has no splits: its index counts through all tasks.
        self._tasks = world.agentgym_tasks

    def operations(self) -> dict[str, Operation]:
        """Return the dialect's operations by path."""
        dialect = self._dialect
        if dialect is None:
            return {}
        return {
            "/create": self._operation("create", dialect.create, self._create),
            "/reset": self._operation("reset", dialect.reset, self._reset),
            "/step": self._operation("step", dialect.step, self._step),
            "/close": self._operation("close", dialect.close, self._close),
            **{path: self._operation("look", dialect.close, self._ask(*asked)) for path, asked in dialect.asked.items()},
        }

    def pages(self) -> dict[str, Page]:
        """Return the greeting and the views of a session, by path."""
        dialect = self._dialect
        if dialect is None:
            return {}

        async def greet(_: dict[str, str]) -> Answer:
            return 200, encode(dialect.greeting)

        return {
            "/": greet,
            "/observation": self._view(dialect, "observe", (), dialect.observed),
            "/detail": self._view(dialect, "observe", (), _detail),
            **{path: self._view(dialect, "look", (attribute,), _showing(show)) for path, (attribute, show) in dialect.views.items()},
        }

    async def _create(self, dialect: Dialect, _: Any, client: str) -> Any:
        reply = await self._perform("create", (self._tasks[0] if dialect.begins_on_create else None, None, None, True, client), client)
        assert reply.number is not None
        return dialect.created(reply.number, reply.observation or "")

    async def _reset(self, dialect: Dialect, body: Any, client: str) -> Any:
        index = body.index or 0
        if dialect.wraps:
            index = self._tasks[index % len(self._tasks)]
        begun = dialect.begun(body.session, body, await self._perform("reset", (body.session, index), client))
        return await self._with(begun, dialect.besides, body.session, client)

    async def _step(self, dialect: Dialect, body: Any, client: str) -> Any:
        stepped = dialect.stepped(await self._perform("step", (body.session, None, body.action), client))
        return await self._with(stepped, dialect.running, body.session, client)

    async def _with(self, reply: Any, fields: Mapping[str, tuple[str, Callable[[str], Any]]], session: int, client: str) -> Any:
        for name, (attribute, show) in fields.items():
            reply[name] = show((await self._perform("look", (session, attribute), client)).observation or "")
        return reply

    async def _close(self, dialect: Dialect, body: Any, client: str) -> Any:
        await self._perform("close", (body.session,), client)
        return dialect.closed

    def _ask(self, attribute: str, show: Callable[[str], Any]) -> Perform:
        async def ask(_: Dialect, body: Any, client: str) -> Any:
            return show((await self._perform("look", (body.session, attribute), client)).observation or "")

        return ask

    async def _perform(self, operation: str, call: Call, client: str) -> Reply:
        [reply] = await self._dispatcher.perform(operation, [call], client)
        if reply.error is not None:
            raise RequestError(reply.status, reply.error.type, reply.error.message, reply.error.field)
        return reply

    def _operation(self, name: str, body_type: type[msgspec.Struct], perform: Perform) -> Operation:
        assert self._dialect is not None
        dialect = self._dialect
        decoder = msgspec.json.Decoder(body_type, strict=False)
        seconds = self._dispatcher.sessions.metrics.request_seconds("agentgym", name)

        async def operation(request: Request) -> Answer:
            began = time.perf_counter()
            try:
                body = decode(decoder, request.body or b"{}")
                status, content = 200, encode(await perform(dialect, body, request.client))
            except RequestError as refusal:
                status, content = _refused(refusal)
            seconds.observe(time.perf_counter() - began)
            return status, content

        return operation

    def _view(self, dialect: Dialect, operation: str, arguments: Call, show: Callable[[Reply], Any]) -> Page:
        name = dialect.session_field

        async def handle(query: dict[str, str]) -> Answer:
            try:
                number = query.get(name, "")
                if not (number.isascii() and number.isdecimal() and len(number) < 19):
                    raise RequestError(422, "invalid_field", f"{name} is a session's number", name)
                return 200, encode(show(await self._perform(operation, (int(number), *arguments), VIEWERS)))
            except RequestError as refusal:
                return _refused(refusal)

        return handle


def _refused(refusal: RequestError) -> Answer:
    """Return status and body of an error.

    AgentGym's validation errors, malformed JSON included, have status 422 and a `detail`.
    """
    error = refusal.error
    body: dict[str, Any] = {"error": error.message}
    if refusal.status not in (400, 422):
        return refusal.status, encode(body)
    body["detail"] = [{"type": error.type, "loc": ["body", *([error.field] if error.field else [])], "msg": error.message}]
    return 422, encode(body)
