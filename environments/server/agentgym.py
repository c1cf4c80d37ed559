"""AgentGym's dialect at the root paths, so that AgentGym's unchanged clients work with our servers.

Sessions have leases, as in our dialect, but integer ids. Errors have real HTTP statuses with a body
{"error": text}. AgentGym's clients require status 200, so they raise at the error itself rather
than one line later at a missing field.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.protocol import Reply
from environments.server.agentgym_dialects import DIALECTS, Create, Dialect, Shown
from environments.server.answers import answer, body_of, decode, encode
from environments.server.dispatcher import Call, Dispatcher
from environments.server.errors import RequestError
from environments.server.guard import client_of

VIEWERS = " "
"""The client name of all GET requests. All viewers share one client's turns."""
Perform = Callable[[str, Call], Awaitable[Reply]]
"""Performs an operation for the client of the request."""
Play = Callable[[Perform, Any, str], Awaitable[Any]]
"""Maps how to perform operations, a request's body and its client to the answer's content."""


def routes(dispatcher: Dispatcher) -> list[Route]:
    """Return the dialect's operations and pages. A world without an entry in DIALECTS has none."""
    world = dispatcher.sessions.world
    dialect = DIALECTS.get(world.name)
    if dialect is None:
        return []
    # AgentGym has no splits: its index counts through all tasks.
    return _AgentGym(dispatcher, dialect, world.agentgym_tasks).routes()


class _AgentGym:
    def __init__(self, dispatcher: Dispatcher, dialect: Dialect, tasks: Any) -> None:
        self._dispatcher = dispatcher
        self._dialect = dialect
        self._tasks = tasks

    def routes(self) -> list[Route]:
        dialect = self._dialect

        async def greet(_: Request) -> Response:
            return answer(encode(dialect.greeting))

        return [
            self._operation("/step", dialect.body("session", "action"), self._step),
            self._operation("/reset", dialect.body("session", "index"), self._reset),
            self._operation("/create", Create, self._create),
            self._operation("/close", dialect.body("session"), self._close),
            *(
                self._operation(path, dialect.body("session"), _asking(*asked))
                for path, asked in dialect.asked.items()
            ),
            Route("/", greet),
            self._view("/observation", "observe", (), dialect.observed),
            self._view("/detail", "observe", (), _detail),
            *(
                self._view(path, "look", (name,), _showing(show))
                for path, (name, show) in dialect.views.items()
            ),
        ]

    async def _create(self, perform: Perform, _: Any, client: str) -> Any:
        first = self._tasks[0] if self._dialect.begins_on_create else None
        reply = await perform("create", (first, None, None, True, client))
        assert reply.number is not None
        return self._dialect.created(reply.number, reply.observation or "")

    async def _reset(self, perform: Perform, body: Any, _: str) -> Any:
        index = body.index or 0
        if self._dialect.wraps:
            index = self._tasks[index % len(self._tasks)]
        begun = self._dialect.begun(
            body.session, body, await perform("reset", (body.session, index))
        )
        return await _with(perform, begun, self._dialect.besides, body.session)

    async def _step(self, perform: Perform, body: Any, _: str) -> Any:
        stepped = self._dialect.stepped(await perform("step", (body.session, None, body.action)))
        return await _with(perform, stepped, self._dialect.running, body.session)

    async def _close(self, perform: Perform, body: Any, _: str) -> Any:
        await perform("close", (body.session,))
        return self._dialect.closed

    def _operation(self, path: str, body_type: type[msgspec.Struct], play: Play) -> Route:
        decoder = msgspec.json.Decoder(body_type, strict=False)

        async def operation(request: Request) -> Response:
            body, client = await body_of(request), client_of(request)
            try:
                asked = decode(decoder, body or b"{}")
                return answer(encode(await play(self._performing(request, client), asked, client)))
            except RequestError as refusal:
                return _refused(refusal)

        return Route(path, operation, methods=["POST"])

    def _view(
        self, path: str, operation: str, arguments: Call, show: Callable[[Reply], Any]
    ) -> Route:
        name = self._dialect.session_field

        async def view(request: Request) -> Response:
            number = request.query_params.get(name, "")
            try:
                if not (number.isascii() and number.isdecimal() and len(number) < 19):
                    raise RequestError(422, "invalid_field", f"{name} is a session's number", name)
                reply = await self._performing(request, VIEWERS)(
                    operation, (int(number), *arguments)
                )
            except RequestError as refusal:
                return _refused(refusal)
            return answer(encode(show(reply)))

        return Route(path, view)

    def _performing(self, request: Request, client: str) -> Perform:
        async def perform(operation: str, call: Call) -> Reply:
            [reply] = await self._dispatcher.perform(
                operation, [call], client, request.is_disconnected
            )
            if reply.error is not None:
                raise RequestError(
                    reply.status, reply.error.type, reply.error.message, reply.error.field
                )
            return reply

        return perform


async def _with(perform: Perform, reply: Any, fields: Shown, session: int) -> Any:
    for name, (attribute, show) in fields.items():
        reply[name] = show((await perform("look", (session, attribute))).observation or "")
    return reply


def _asking(attribute: str, show: Callable[[str], Any]) -> Play:
    async def ask(perform: Perform, body: Any, _: str) -> Any:
        return show((await perform("look", (body.session, attribute))).observation or "")

    return ask


def _showing(show: Callable[[str], Any]) -> Callable[[Reply], Any]:
    """Return a function that builds a view's answer from the text of a `look` reply."""
    return lambda reply: show(reply.observation or "")


def _detail(reply: Reply) -> dict[str, Any]:
    return {
        "observation": reply.observation,
        "reward": reply.reward or 0,
        "done": bool(reply.done),
        "deleted": False,
    }


def _refused(refusal: RequestError) -> Response:
    """Return the answer to a rejected request.

    AgentGym's validation errors, malformed JSON included, have status 422 and a `detail`.
    """
    error = refusal.error
    body: dict[str, Any] = {"error": error.message}
    if refusal.status not in (400, 422):
        return answer(encode(body), refusal.status)
    body["detail"] = [
        {
            "type": error.type,
            "loc": ["body", *([error.field] if error.field else [])],
            "msg": error.message,
        }
    ]
    return answer(encode(body), 422)
