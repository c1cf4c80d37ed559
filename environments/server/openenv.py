"""OpenEnv's protocol for every world: WebSocket sessions, pages about the world, and its tasks.

One socket is one session, with the leases, limits and token of the other dialects. POST /reset and
/step are also paths of AgentGym, whose bodies name a session. Over HTTP, OpenEnv has no sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from environments.environment import SPLITS, World
from environments.protocol import Action, Int64, Reply
from environments.server.agentgym_dialects import DIALECTS
from environments.server.answers import answer, body_of, decode, encode
from environments.server.dispatcher import Dispatcher
from environments.server.errors import RequestError
from environments.server.guard import client_of
from environments.tools import ANY_ACTION, ToolCallError, action_of

Endpoint = Callable[[Request], Awaitable[Response]]
PATHS = {
    "/reset": "post",
    "/step": "post",
    "/state": "get",
    "/metadata": "get",
    "/schema": "get",
    "/mcp": "post",
}
"""Paths and methods of the protocol, beside /health, /openapi.json, /ws and the tasks."""

_TEXT = {"type": "string"}
_METADATA = {"type": "object", "default": {}}
SCHEMA = {
    "action": {
        "title": "TextAction",  # clients take "Action" for an action that calls a tool
        "type": "object",
        "properties": {
            "action": {**_TEXT, "description": "The text of the action."},
            "metadata": _METADATA,
        },
        "required": ["action"],
        "additionalProperties": False,
    },
    "observation": {
        "title": "Observation",
        "type": "object",
        "properties": {
            "text": {**_TEXT, "description": "What the agent reads."},
            "metadata": _METADATA,
        },
        "required": ["text"],
    },
    "state": {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"type": ["string", "null"]},
            "step_count": {"type": "integer", "minimum": 0},
        },
    },
}


class ResetData(msgspec.Struct):
    """Arguments of a reset. A seed chooses a task of the split.

    Without both, the choice is random.
    """

    seed: Int64 | None = None
    episode_id: str | None = None
    split: str = "train"
    index: Int64 | None = None


class ActionData(msgspec.Struct, forbid_unknown_fields=True):
    """An action, as in SCHEMA."""

    action: Action
    metadata: dict[str, Any] = {}


class CallData(msgspec.Struct):
    """An action that calls a tool."""

    tool_name: str
    arguments: dict[str, Any] = {}


class CallParameters(msgspec.Struct):
    """Parameters of the JSON-RPC method tools/call."""

    name: str
    arguments: dict[str, Any] = {}


class StepBody(msgspec.Struct):
    """Body of POST /step."""

    action: ActionData


class Message(msgspec.Struct):
    """A message of a client."""

    type: str
    data: dict[str, Any] = {}


class Tasks(msgspec.Struct):
    """Body of a request about tasks: a split, and one index or a range of it."""

    split: str
    index: Int64 | None = None
    start: Int64 | None = None
    stop: Int64 | None = None


class Episode:
    """The session of one client."""

    def __init__(self, dispatcher: Dispatcher, client: str, session: str = "") -> None:
        """
        Args:
            dispatcher: Performs the operations.
            client: The client. See `client_of`.
            session: Id of an open session. Empty: `open` opens one.
        """
        self.session = session
        self._dispatcher, self._client = dispatcher, client
        self._world = dispatcher.sessions.world
        self._episode_id: str | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The protocol's state: the name of the episode and the number of steps."""
        session = self._dispatcher.sessions.get(self.session)
        return {"episode_id": self._episode_id, "step_count": session.turn if session else 0}

    @property
    def lease_s(self) -> float:
        """Seconds that the session outlives its last message."""
        session = self._dispatcher.sessions.get(self.session)
        return session.lease_s if session else 0.0

    async def open(self) -> None:
        """Open the session.

        Raises:
            RequestError: 503 all sessions are in use, 500 the world failed.
        """
        self.session = (
            await self._perform("create", None, None, None, False, self._client)
        ).session or ""

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode and return its observation."""
        asked = _converted(data, ResetData)
        tasks = _tasks(self._world, asked.split)
        place = asked.index
        if place is None and len(tasks):
            place = random.randrange(len(tasks)) if asked.seed is None else asked.seed % len(tasks)
        task = tasks[_place(place, len(tasks))]
        begun = await self._perform("reset", self.session, task)
        self._episode_id = asked.episode_id or f"{self.session[:8]}-{task}"
        return _observed(begun, {"text": begun.observation})

    async def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Perform an action, which may be a tool call, and return its observation."""
        match data.get("type"):
            case "list_tools":
                return {
                    "observation": {"tools": _tools_of(self._world, "input_schema")},
                    "reward": None,
                    "done": False,
                }
            case "call_tool":
                call = _converted(data, CallData)
                called = await self._call(call.tool_name, call.arguments)
                return _observed(
                    called,
                    {"tool_name": call.tool_name, "result": called.observation, "error": None},
                )
        stepped = await self._perform(
            "step", self.session, None, _converted(data, ActionData).action
        )
        return _observed(stepped, {"text": stepped.observation})

    async def json_rpc(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request about tools, or one that opens or closes the session."""
        answered: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id")}
        try:
            match request.get("method"):
                case "tools/list":
                    result: dict[str, Any] = {"tools": _tools_of(self._world, "inputSchema")}
                case "tools/call":
                    call = _converted(request.get("params"), CallParameters)
                    called = await self._call(call.name, call.arguments)
                    text = {"type": "text", "text": called.observation}
                    outcome = {"reward": called.reward, "done": called.done}
                    result = {
                        "content": [text],
                        "isError": bool(called.refused),
                        "structuredContent": outcome,
                        "data": called.observation,
                    }
                case "openenv/session/create":
                    if not self.session:  # a socket has one from its start
                        await self.open()
                    result = {"session_id": self.session}
                case "openenv/session/close":
                    await self.close()
                    result = {"session_id": self.session, "closed": True}
                case _:
                    return {
                        **answered,
                        "error": {
                            "code": -32601,
                            "message": "the methods are tools/list and tools/call",
                        },
                    }
        except RequestError as refusal:
            return {
                **answered,
                "error": {
                    "code": -32602 if refusal.status == 422 else -32000,
                    "message": refusal.error.message,
                },
            }
        return {**answered, "result": result}

    async def close(self) -> None:
        """End the session, if it is open."""
        if self._dispatcher.sessions.get(self.session) is not None:
            await self._dispatcher.perform("close", [(self.session,)], self._client, _stays)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Perform a tool call.

        A call that fits no tool is refused, as the world refuses an action.
        """
        try:
            return await self._perform(
                "step", self.session, None, action_of(self._world.tools, name, arguments)
            )
        except ToolCallError as wrong:
            return Reply(status=200, observation=str(wrong), reward=0.0, done=False, refused=True)

    async def _perform(self, operation: str, *call: Any) -> Reply:
        [reply] = await self._dispatcher.perform(operation, [call], self._client, _stays)
        if reply.error is not None:
            raise RequestError(
                reply.status, reply.error.type, reply.error.message, reply.error.field
            )
        return reply


def routes(dispatcher: Dispatcher, theirs: list[Route]) -> list[BaseRoute]:
    """Return the routes of the protocol together with AgentGym's."""
    world = dispatcher.sessions.world
    handlers = _handlers(dispatcher)
    shared = {route.path: route.endpoint for route in theirs if route.path in handlers}
    field = DIALECTS[world.name].session_field if shared else ""
    own = [
        Route(
            path,
            _either(field, shared[path], handler) if path in shared else handler,
            methods=[PATHS[path].upper()],
        )
        for path, handler in handlers.items()
    ]
    sockets = [WebSocketRoute("/ws", lambda socket: _play(dispatcher, socket))]
    return [
        *own,
        *(route for route in theirs if route.path not in shared),
        *_task_routes(world),
        *sockets,
    ]


def _handlers(dispatcher: Dispatcher) -> dict[str, Endpoint]:
    world = dispatcher.sessions.world

    async def reset(request: Request) -> Response:
        data = decode(_object, await body_of(request) or b"{}")
        episode = Episode(dispatcher, client_of(request))
        await episode.open()
        try:
            return answer(encode(await episode.reset(data)))
        finally:
            await episode.close()

    async def step(request: Request) -> Response:
        decode(_step_body, await body_of(request))
        raise RequestError(
            409,
            "episode_over",
            "no episode has begun: over HTTP there are no sessions, so play over /ws",
        )

    async def call_tool(request: Request) -> Response:
        try:
            asked = decode(_object, await body_of(request))
        except RequestError as refusal:
            return answer(
                encode(
                    {
                        "jsonrpc": "2.0",
                        "id": None,
                        "error": {"code": -32700, "message": refusal.error.message},
                    }
                )
            )
        params = asked.get("params")
        session = params.get("session_id") if isinstance(params, dict) else None
        return answer(
            encode(
                await Episode(dispatcher, client_of(request), str(session or "")).json_rpc(asked)
            )
        )

    def page(content: Any) -> Endpoint:
        encoded = encode(content)

        async def show(_: Request) -> Response:
            return answer(encoded)

        return show

    return {
        "/reset": reset,
        "/step": step,
        "/state": page({"episode_id": None, "step_count": 0}),
        "/metadata": page(
            {"name": world.name, "description": world.instruction, "version": world.version}
        ),
        "/schema": page(SCHEMA),
        "/mcp": call_tool,
    }


def _task_routes(world: World) -> list[Route]:
    def tasks(show: Callable[[Tasks, range], Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = decode(_tasks_body, await body_of(request))
            places = range(len(_tasks(world, asked.split)))
            return answer(await asyncio.to_thread(lambda: encode(show(asked, places))))

        return endpoint

    def listed(split: str, places: range) -> list[dict[str, Any]]:
        tasks = _tasks(world, split)
        return [
            {"split": split, "index": place, "task": tasks[place], "tag": world.tag(tasks[place])}
            for place in places
        ]

    async def list_worlds(_: Request) -> Response:
        return answer(encode([world.name]))

    async def list_splits(_: Request) -> Response:
        return answer(
            encode(
                [
                    {"name": name, "type": name if name in SPLITS else "validation"}
                    for name in world.lists
                ]
            )
        )

    def one(asked: Tasks, places: range) -> Any:
        place = _place(asked.index, len(places))
        return {"task": listed(asked.split, range(place, place + 1))[0]}

    shown: dict[str, Callable[[Tasks, range], Any]] = {
        "tasks": lambda asked, places: {
            "tasks": listed(asked.split, places),
            "env_name": world.name,
        },
        "num_tasks": lambda _, places: {"num_tasks": len(places)},
        "task": one,
        "task_range": lambda asked, places: {
            "tasks": listed(asked.split, places[asked.start : asked.stop])
        },
    }
    return [
        Route("/list_environments", list_worlds),
        Route(f"/{world.name}/splits", list_splits),
        *(
            Route(f"/{world.name}/{name}", tasks(show), methods=["POST"])
            for name, show in shown.items()
        ),
    ]


async def _play(dispatcher: Dispatcher, socket: WebSocket) -> None:
    """Serve a socket until its client leaves, closes the session or lets the lease run out."""
    await socket.accept()
    attached = socket.query_params.get("session_id", "")
    episode = Episode(dispatcher, client_of(socket), attached)
    try:
        await (dispatcher.sessions.find(attached) if attached else episode.open())
        while (message := await asyncio.wait_for(socket.receive(), episode.lease_s))[
            "type"
        ] == "websocket.receive":
            await dispatcher.sessions.find(episode.session)  # any message renews the lease
            reply = await _replied(episode, message.get("text") or message.get("bytes") or "")
            if reply is None:
                break
            await socket.send_text(encode(reply).decode())
    except RequestError as refusal:
        with contextlib.suppress(WebSocketDisconnect):
            await socket.send_text(encode(_error(refusal)).decode())
    except TimeoutError:
        ended = RequestError(
            410,
            "session_ended",
            f"the session's lease of {episode.lease_s:g} s ran out without a message; start the "
            "server with a longer --lease",
        )
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.send_text(encode(_error(ended)).decode())
    except WebSocketDisconnect:
        pass
    finally:
        if not attached:
            await episode.close()
        # The client may have closed it.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.close()


async def _replied(episode: Episode, text: str | bytes) -> dict[str, Any] | None:
    """Return the reply to a message. None: the client closes the session.

    Raises:
        RequestError: The session has ended.
    """
    try:
        message = decode(_message, text.encode() if isinstance(text, str) else text)
        match message.type:
            case "reset":
                return {"type": "observation", "data": await episode.reset(message.data)}
            case "step":
                return {"type": "observation", "data": await episode.step(message.data)}
            case "state":
                return {"type": "state", "data": episode.state}
            case "mcp":
                return {"type": "mcp", "data": await episode.json_rpc(message.data)}
            case "close":
                return None
            case unknown:
                return {
                    "type": "error",
                    "data": {
                        "code": "UNKNOWN_TYPE",
                        "message": f"there is no message type {unknown[:100]!r}",
                    },
                }
    except RequestError as refusal:
        if refusal.status in (400, 409, 422):
            return _error(refusal)
        raise


CODES = {
    400: "INVALID_JSON",
    409: "EXECUTION_ERROR",
    422: "VALIDATION_ERROR",
    503: "CAPACITY_REACHED",
}


def _error(refusal: RequestError) -> dict[str, Any]:
    data: dict[str, Any] = {
        "message": refusal.error.message,
        "code": CODES.get(refusal.status, "SESSION_ERROR"),
    }
    if refusal.status == 422:
        data["errors"] = [
            {
                "type": refusal.error.type,
                "loc": [refusal.error.field or "data"],
                "msg": refusal.error.message,
            }
        ]
    return {"type": "error", "data": data}


def _tools_of(world: World, schema: str) -> list[dict[str, Any]]:
    """Return the world's tools.

    A world that declares none has no tools, only the field `action`.
    """
    functions = [tool.schema["function"] for tool in world.tools if tool is not ANY_ACTION]
    return [
        {"name": each["name"], "description": each["description"], schema: each["parameters"]}
        for each in functions
    ]


def _either(session_field: str, theirs: Endpoint, ours: Endpoint) -> Endpoint:
    """Return an endpoint that serves both protocols.

    AgentGym's bodies name a session, and its actions are texts.
    """

    async def endpoint(request: Request) -> Response:
        try:
            body = decode(_object, await body_of(request))
        except RequestError:
            return await theirs(request)
        is_ours = session_field not in body and not isinstance(body.get("action"), str)
        return await (ours if is_ours else theirs)(request)

    return endpoint


def _observed(reply: Reply, observation: dict[str, Any]) -> dict[str, Any]:
    metadata = {} if reply.refused is None else {"refused": reply.refused}
    return {
        "observation": {**observation, "metadata": metadata},
        "reward": reply.reward,
        "done": bool(reply.done),
        "metadata": metadata,
    }


def _tasks(world: World, split: str) -> Any:
    try:
        return world.tasks(split)
    except KeyError as unknown:
        raise RequestError(422, "invalid_field", str(unknown.args[0])[:1000], "split") from None


def _place(index: int | None, length: int) -> int:
    if index is None or not 0 <= index < length:
        raise RequestError(
            422, "no_such_task", f"the split has the indices 0 to {length - 1}", "index"
        )
    return index


def _converted(data: object, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as wrong:
        raise RequestError(422, "invalid_field", str(wrong)) from None


async def _stays() -> bool:
    """Tell the dispatcher that the client is present. A socket has one call in progress at most."""
    return False


_object = msgspec.json.Decoder(dict[str, Any])
_message = msgspec.json.Decoder(Message)
_step_body = msgspec.json.Decoder(StepBody)
_tasks_body = msgspec.json.Decoder(Tasks)
