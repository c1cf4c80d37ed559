"""AgentGym's dialect at the root paths, so that clients written for AgentGym's servers work against ours unchanged.

One `Dialect` per world says how its bodies and replies differ; adding a world's takes one entry of DIALECTS. Sessions are ours, with
leases; their ids are integers here. Failures have real statuses with a body {"error": text}: AgentGym's clients insist on
status 200, so they raise at the fault and not one line later at a missing field.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.environment import Split, World
from environments.protocol import Int64, Reply
from environments.server.dispatcher import Call, Dispatcher
from environments.server.json_api import Operation, answer, decode, encode
from environments.server.sessions import RequestError


def _showing(show: Callable[[str], Any]) -> Callable[[Reply], Any]:
    """What a view answers, made of the text of the environment's attribute or method."""
    return lambda reply: show(reply.observation or "")


class Create(msgspec.Struct):
    """A create body of which nothing is needed."""


class TextCraftCreate(msgspec.Struct):
    """TextCraft's create body. Tasks of one's own are not served: the three fields are null in AgentGym's clients."""

    minecraft_dir: str | None = None
    commands: None = None
    goal: None = None


class Reset(msgspec.Struct):
    """Begins the task `data_idx` in session `id`."""

    session: Int64 = msgspec.field(name="id")
    index: Int64 | None = msgspec.field(name="data_idx", default=0)


class Step(msgspec.Struct):
    """Performs `action` in session `id`."""

    session: Int64 = msgspec.field(name="id")
    action: str


class Close(msgspec.Struct):
    """Ends session `id`."""

    session: Int64 = msgspec.field(name="id")


class SearchQAReset(msgspec.Struct):
    """Begins the task `id` in session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")
    index: Int64 | None = msgspec.field(name="id", default=0)


class WebArenaReset(msgspec.Struct):
    """Begins the task `idx` in session `env_idx`. The seed that AgentGym's clients send has no meaning."""

    session: Int64 = msgspec.field(name="env_idx")
    index: Int64 | None = msgspec.field(name="idx", default=0)


class EnvStep(msgspec.Struct):
    """Performs `action` in session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")
    action: str


class EnvClose(msgspec.Struct):
    """Ends session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")


@dataclass(frozen=True)
class Dialect:
    """How one world speaks AgentGym's dialect.

    Attributes:
        greeting: What GET / answers.
        created: create's reply, from the session's number and the first observation ("" unless `begins_on_create`).
        begun: reset's reply, from the session's number, the request and the reply of ours.
        stepped: step's reply.
        closed: close's reply.
        create, reset, step, close: The bodies. Whatever the wire calls them, their attributes are `session`, `index` and `action`.
        session_field: The query parameter that names the session in GET requests.
        begins_on_create: Whether create begins an episode (of the first task) at once.
        wraps: Whether any index is taken modulo the number of tasks; else an unknown one is an error.
        views: Further GET paths, the environment's attribute or method that each shows, and the reply made of its text.
        observed: GET /observation's reply.
        besides: Further fields of reset's reply: the environment's attribute or method that each shows, and the value made of its text.
        running: Further fields of step's reply, likewise.
        asked: Further POST paths with close's body: the environment's attribute or method that each shows, and the reply made of it.
    """

    greeting: str
    created: Callable[[int, str], Any]
    begun: Callable[[int, Any, Reply], Any]
    stepped: Callable[[Reply], Any]
    closed: Any = True
    create: type[msgspec.Struct] = Create
    reset: type[msgspec.Struct] = Reset
    step: type[msgspec.Struct] = Step
    close: type[msgspec.Struct] = Close
    session_field: str = "id"
    begins_on_create: bool = False
    wraps: bool = True
    views: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)
    observed: Callable[[Reply], Any] = lambda reply: reply.observation
    besides: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)
    running: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)
    asked: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)


def _detail(reply: Reply) -> dict[str, Any]:
    return {"observation": reply.observation, "reward": reply.reward or 0, "done": bool(reply.done), "deleted": False}


def _scored(reply: Reply) -> dict[str, Any]:
    """An answer of BabyAI's, where by our rules only the end earns anything: the score so far is what the last action earned."""
    return {"observation": reply.observation, "reward": reply.reward or 0, "score": reply.reward or 0, "done": bool(reply.done)}


def _goal_without_order(observation: str) -> str:
    """AgentGym's BabyAI does not tell in which order the parts of a goal are to be done; its clients' prompts and data are made of that."""
    goal, newline, rest = observation.partition("\n")
    return goal.replace("then", "and").replace("after you", "and") + newline + rest


def _without_description(reply: Reply) -> str:
    """An observation of SciWorld's. The first one begins with the task's description, which is a field of its own there."""
    observation = reply.observation or ""
    return observation if reply.reward is not None else observation.partition("\n")[2]


DIALECTS: dict[str, Dialect] = {
    "babyai": Dialect(
        greeting="This is environment BabyAI.",
        wraps=False,
        created=lambda number, observation: {"id": number},
        begun=lambda number, body, reply: {
            **_scored(reply),
            "observation": _goal_without_order(reply.observation or ""),
            "deleted": False,
        },
        stepped=_scored,
        views={"/discounted_reward": ("discounted_reward", str)},
        observed=_scored,
        running={"score": ("score", float)},
        asked={"/render": ("picture_url", lambda url: {"image": url})},
    ),
    "sciworld": Dialect(
        greeting="This is environment ScienceWorld.",
        wraps=False,
        created=lambda number, observation: {"id": number},
        begun=lambda number, body, reply: {
            "observation": _without_description(reply),
            "reward": 0,
            "score": 0,
            "done": False,
            "deleted": False,
        },
        besides={"task_name": ("task_name", str), "var_num": ("variation", int), "task_description": ("task_description", str)},
        observed=_without_description,
        # Their points, 0 to 100; -100, which says that the task has failed, under AgentGym's rules alone.
        stepped=lambda reply: {"observation": reply.observation, "reward": round(100 * (reply.reward or 0)), "done": reply.done},
        running={"score": ("score", lambda score: round(100 * float(score)))},
        views={
            "/task_description": ("task_description", str),
            "/goals": ("hints", lambda hints: {"goals": json.loads(hints)["goals"]}),
            "/action_hint": ("hints", lambda hints: {key: value for key, value in json.loads(hints).items() if key != "goals"}),
        },
    ),
    "searchqa": Dialect(
        greeting="ok",
        reset=SearchQAReset,
        step=EnvStep,
        close=EnvClose,
        session_field="env_idx",
        begins_on_create=True,
        wraps=False,
        created=lambda number, observation: number,
        begun=lambda number, body, reply: reply.observation,
        stepped=lambda reply: {"observation": reply.observation, "reward": reply.reward, "done": reply.done, "info": None},
    ),
    "textcraft": Dialect(
        greeting="This is environment TextCraft.",
        create=TextCraftCreate,
        begins_on_create=True,
        created=lambda number, observation: {"id": number, "observation": observation, "done": False, "reward": 0},
        begun=lambda number, body, reply: {"id": number, "observation": reply.observation, "done": False, "reward": 0},
        stepped=lambda reply: {"observation": reply.observation, "reward": reply.reward, "done": reply.done},
        views={"/goal": ("goal", str)},
    ),
    "webarena": Dialect(
        greeting="ok",
        reset=WebArenaReset,
        step=EnvStep,
        close=EnvClose,
        session_field="env_idx",
        wraps=False,
        created=lambda number, observation: {"env_idx": number},
        begun=lambda number, body, reply: {"observation": reply.observation},
        besides={"sites": ("sites", lambda names: names.split()), "object": ("objective", str)},
        stepped=lambda reply: {
            "observation": reply.observation,
            "reward": reply.reward,
            "terminated": reply.done,
            "truncated": False,
            "info": {},
        },
        closed={"closed": True},
    ),
}


class AgentGym:
    """The dialect of one world. A world without an entry in DIALECTS has no operation and no route."""

    def __init__(self, dispatcher: Dispatcher, world: World) -> None:
        self._dispatcher = dispatcher
        self._dialect = DIALECTS.get(world.name)
        # AgentGym knows no splits: its index counts through all tasks.
        self._tasks: Sequence[int] = sorted(index for split in get_args(Split) for index in world.tasks(split))

    def operations(self) -> dict[str, Operation]:
        """The dialect's operations by path."""
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

    def routes(self) -> list[Route]:
        """The greeting and what shows a session."""
        dialect = self._dialect
        if dialect is None:
            return []

        async def greet(_: Request) -> Response:
            return answer(dialect.greeting)

        return [
            Route("/", greet),
            self._view(dialect, "/observation", "observe", (), dialect.observed),
            self._view(dialect, "/detail", "observe", (), _detail),
            *(self._view(dialect, path, "look", (attribute,), _showing(show)) for path, (attribute, show) in dialect.views.items()),
        ]

    async def _create(self, dialect: Dialect, _: Any) -> Any:
        reply = await self._perform("create", (self._tasks[0] if dialect.begins_on_create else None, None, True))
        assert reply.number is not None
        return dialect.created(reply.number, reply.observation or "")

    async def _reset(self, dialect: Dialect, body: Any) -> Any:
        index = body.index or 0
        if dialect.wraps:
            index = self._tasks[index % len(self._tasks)]
        begun = dialect.begun(body.session, body, await self._perform("reset", (body.session, index)))
        return await self._with(begun, dialect.besides, body.session)

    async def _step(self, dialect: Dialect, body: Any) -> Any:
        stepped = dialect.stepped(await self._perform("step", (body.session, None, body.action)))
        return await self._with(stepped, dialect.running, body.session)

    async def _with(self, reply: Any, fields: Mapping[str, tuple[str, Callable[[str], Any]]], session: int) -> Any:
        for name, (attribute, show) in fields.items():
            reply[name] = show((await self._perform("look", (session, attribute))).observation or "")
        return reply

    async def _close(self, dialect: Dialect, body: Any) -> Any:
        await self._perform("close", (body.session,))
        return dialect.closed

    def _ask(self, attribute: str, show: Callable[[str], Any]) -> Callable[[Dialect, Any], Awaitable[Any]]:
        async def ask(_: Dialect, body: Any) -> Any:
            return show((await self._perform("look", (body.session, attribute))).observation or "")

        return ask

    async def _perform(self, operation: str, call: Call) -> Reply:
        [reply] = await self._dispatcher.perform(operation, [call])
        if reply.error is not None:
            raise RequestError(reply.status, reply.error.type, reply.error.message, reply.error.field)
        return reply

    def _operation(self, name: str, body_type: type[msgspec.Struct], perform: Callable[[Dialect, Any], Awaitable[Any]]) -> Operation:
        assert self._dialect is not None
        dialect = self._dialect
        decoder = msgspec.json.Decoder(body_type, strict=False)
        seconds = self._dispatcher.sessions.metrics.request_seconds("agentgym", name)

        async def operation(body: bytes) -> tuple[int, bytes]:
            began = time.perf_counter()
            try:
                status, content = 200, encode(await perform(dialect, decode(decoder, body or b"{}")))
            except RequestError as refusal:
                status, content = _refused(refusal)
            seconds.observe(time.perf_counter() - began)
            return status, content

        return operation

    def _view(
        self,
        dialect: Dialect,
        path: str,
        operation: str,
        arguments: Call,
        show: Callable[[Reply], Any] = lambda reply: reply.observation,
    ) -> Route:
        name = dialect.session_field

        async def handle(request: Request) -> Response:
            try:
                number = request.query_params.get(name, "")
                if not (number.isascii() and number.isdecimal() and len(number) < 19):
                    raise RequestError(422, "invalid_field", f"{name} is a session's number", name)
                return answer(show(await self._perform(operation, (int(number), *arguments))))
            except RequestError as refusal:
                status, content = _refused(refusal)
                return Response(content, status, media_type="application/json")

        return Route(path, handle)


def _refused(refusal: RequestError) -> tuple[int, bytes]:
    """Status and body; their validation errors are 422 with a `detail`, malformed JSON included."""
    error = refusal.error
    body: dict[str, Any] = {"error": error.message}
    if refusal.status not in (400, 422):
        return refusal.status, encode(body)
    body["detail"] = [{"type": error.type, "loc": ["body", *([error.field] if error.field else [])], "msg": error.message}]
    return 422, encode(body)
