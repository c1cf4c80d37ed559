"""AgentGym's dialect of each world: request bodies, replies and views.

To add a world, add one entry to DIALECTS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from environments.protocol import Action, Int64, Reply


class Create(msgspec.Struct):
    """A create body without required fields."""


class TextCraftCreate(msgspec.Struct):
    """TextCraft's create body.

    Custom tasks are not supported: the three fields are null in AgentGym's clients.
    """

    minecraft_dir: str | None = None
    commands: None = None
    goal: None = None


class Reset(msgspec.Struct):
    """Begin the task `data_idx` in session `id`."""

    session: Int64 = msgspec.field(name="id")
    index: Int64 | None = msgspec.field(name="data_idx", default=0)


class Step(msgspec.Struct):
    """Perform `action` in session `id`."""

    session: Int64 = msgspec.field(name="id")
    action: Action


class Close(msgspec.Struct):
    """End session `id`."""

    session: Int64 = msgspec.field(name="id")


class SearchQAReset(msgspec.Struct):
    """Begin the task `id` in session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")
    index: Int64 | None = msgspec.field(name="id", default=0)


class WebArenaReset(msgspec.Struct):
    """Begin the task `idx` in session `env_idx`. The seed from AgentGym's clients is ignored."""

    session: Int64 = msgspec.field(name="env_idx")
    index: Int64 | None = msgspec.field(name="idx", default=0)


class EnvStep(msgspec.Struct):
    """Perform `action` in session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")
    action: Action


class EnvClose(msgspec.Struct):
    """End session `env_idx`."""

    session: Int64 = msgspec.field(name="env_idx")


@dataclass(frozen=True)
class Dialect:
    """AgentGym's dialect of one world.

    Attributes:
        greeting: Answer to GET /.
        created: Builds create's reply from the session's number and the first observation (""
            unless `begins_on_create`).
        begun: Builds reset's reply from the session's number, the request and our reply.
        stepped: Builds step's reply.
        closed: Reply of close.
        create, reset, step, close: Types of the bodies. Their attributes are `session`, `index` and
            `action`, regardless of the names on the wire.
        session_field: Query parameter with the session's number in GET requests.
        begins_on_create: Whether create begins an episode of the first task at once.
        wraps: Whether any index is taken modulo the number of tasks. Otherwise an unknown index is
            an error.
        views: Further GET paths. Each maps to an attribute or method of the environment, and to a
            function that builds the reply from its text.
        observed: Builds the reply of GET /observation.
        besides: Further fields of reset's reply. Each maps to an attribute or method of the
            environment, and to a function that builds the value from its text.
        running: Further fields of step's reply, in the same form.
        asked: Further POST paths with close's body, in the same form as `views`.
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


def _scored(reply: Reply) -> dict[str, Any]:
    """Build a BabyAI reply.

    Under our rules only the end of an episode is rewarded. So the score so far equals the last
    action's reward.
    """
    return {"observation": reply.observation, "reward": reply.reward or 0, "score": reply.reward or 0, "done": bool(reply.done)}


def _without_description(reply: Reply) -> str:
    """Return a SciWorld observation without the task's description.

    In our replies the first observation begins with it. In AgentGym's it is a separate field.
    """
    observation = reply.observation or ""
    return observation if reply.reward is not None else observation.partition("\n")[2]


DIALECTS: dict[str, Dialect] = {
    "babyai": Dialect(
        greeting="This is environment BabyAI.",
        wraps=False,
        created=lambda number, observation: {"id": number},
        begun=lambda number, body, reply: {**_scored(reply), "deleted": False},
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
        # AgentGym's points, 0 to 100. -100 means that the task failed, only under AgentGym's rules.
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
