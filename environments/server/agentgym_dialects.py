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

Shown = Mapping[str, tuple[str, Callable[[str], Any]]]
"""Maps a name on the wire to an attribute of the environment, and to what builds its value."""


class Create(msgspec.Struct):
    """A create body.

    Custom tasks of TextCraft are not supported: these fields are null in AgentGym's clients.
    """

    commands: None = None
    goal: None = None


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
        session_field: Field of bodies and query parameter of pages with the session's number.
        index_field: Field of reset's body with the task's index.
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
    session_field: str = "id"
    index_field: str = "data_idx"
    begins_on_create: bool = False
    wraps: bool = True
    views: Shown = field(default_factory=dict)
    observed: Callable[[Reply], Any] = lambda reply: reply.observation
    besides: Shown = field(default_factory=dict)
    running: Shown = field(default_factory=dict)
    asked: Shown = field(default_factory=dict)

    def body(self, *attributes: str) -> type[msgspec.Struct]:
        """Return the type of a body with some of the attributes session, index and action.

        Its attributes have these names regardless of the names on the wire.
        """
        fields: dict[str, tuple[str, Any, Any]] = {
            "session": ("session", Int64, msgspec.field(name=self.session_field)),
            "index": ("index", Int64 | None, msgspec.field(name=self.index_field, default=0)),
            "action": ("action", Action, msgspec.field()),
        }
        return msgspec.defstruct("Body", [fields[name] for name in attributes])


def _scored(reply: Reply) -> dict[str, Any]:
    """Build a BabyAI reply.

    Under our rules only the end of an episode is rewarded. So the score so far equals the last
    action's reward.
    """
    return {
        "observation": reply.observation,
        "reward": reply.reward or 0,
        "score": reply.reward or 0,
        "done": bool(reply.done),
    }


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
        besides={
            "task_name": ("task_name", str),
            "var_num": ("variation", int),
            "task_description": ("task_description", str),
        },
        observed=_without_description,
        # AgentGym's points, 0 to 100. -100 means that the task failed, only under AgentGym's rules.
        stepped=lambda reply: {
            "observation": reply.observation,
            "reward": round(100 * (reply.reward or 0)),
            "done": reply.done,
        },
        running={"score": ("score", lambda score: round(100 * float(score)))},
        views={
            "/task_description": ("task_description", str),
            "/goals": ("hints", lambda hints: {"goals": json.loads(hints)["goals"]}),
            "/action_hint": (
                "hints",
                lambda hints: {
                    key: value for key, value in json.loads(hints).items() if key != "goals"
                },
            ),
        },
    ),
    "searchqa": Dialect(
        greeting="ok",
        session_field="env_idx",
        index_field="id",
        begins_on_create=True,
        wraps=False,
        created=lambda number, observation: number,
        begun=lambda number, body, reply: reply.observation,
        stepped=lambda reply: {
            "observation": reply.observation,
            "reward": reply.reward,
            "done": reply.done,
            "info": None,
        },
    ),
    "textcraft": Dialect(
        greeting="This is environment TextCraft.",
        begins_on_create=True,
        created=lambda number, observation: {
            "id": number,
            "observation": observation,
            "done": False,
            "reward": 0,
        },
        begun=lambda number, body, reply: {
            "id": number,
            "observation": reply.observation,
            "done": False,
            "reward": 0,
        },
        stepped=lambda reply: {
            "observation": reply.observation,
            "reward": reply.reward,
            "done": reply.done,
        },
        views={"/goal": ("goal", str)},
    ),
    "webarena": Dialect(
        greeting="ok",
        session_field="env_idx",
        index_field="idx",
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
