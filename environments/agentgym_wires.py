"""Wire formats of AgentGym's environment servers: request bodies and replies of each world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from environments.action_text import plain_words


@dataclass(frozen=True)
class Wire:
    """The wire format of one world's server.

    Attributes:
        field: Name of the session field in requests.
        create: Body of create.
        session: Extracts the session's number from create's reply.
        reset: Body of reset from the task index, without the session field.
        first: Extracts the first observation from reset's reply.
        score: Extracts the score from step's reply, before division by `full`.
        running: Whether `score` is the episode's total so far, rather than the last action's
            reward.
        full: The score of a success.
        reward_range: Smallest and largest reward of one action, after division by `full`.
        done: Extracts from step's reply whether the episode has ended.
        sent: Formats an action as AgentGym's own client does.
        greeting: Answer to GET /.
    """

    field: str = "id"
    create: Callable[[], Any] = dict
    session: Callable[[Any], Any] = lambda reply: reply["id"]
    reset: Callable[[int], dict[str, Any]] = lambda index: {"data_idx": index}
    first: Callable[[Any], str] = lambda reply: reply["observation"]
    score: Callable[[Any], float] = lambda reply: reply["reward"]
    running: bool = False
    full: float = 1.0
    reward_range: tuple[float, float] = (0.0, 1.0)
    done: Callable[[Any], bool] = lambda reply: reply["done"]
    sent: Callable[[str], str] = str
    greeting: str = "ok"


WIRES: dict[str, Wire] = {
    "textcraft": Wire(
        create=lambda: {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None},
        sent=plain_words,
        greeting="This is environment TextCraft.",
    ),
    "babyai": Wire(
        score=lambda reply: reply["score"],
        running=True,
        reward_range=(-1000.0, 1.0),  # 1 - 0.9 steps / limit, and an episode may exceed the limit
        sent=plain_words,
        greeting="This is environment BabyAI.",
    ),
    "sciworld": Wire(
        first=lambda reply: f"{reply['task_description']}\n{reply['observation']}",
        score=lambda reply: reply["score"],  # -100 means that the task failed
        running=True,
        full=100.0,
        reward_range=(-2.0, 1.0),
        greeting="This is environment ScienceWorld.",
    ),
    "searchqa": Wire(
        field="env_idx",
        create=lambda: {"id": 0},
        session=lambda reply: reply,
        reset=lambda index: {"id": index},
        first=lambda reply: reply,
    ),
    "webarena": Wire(
        field="env_idx",
        session=lambda reply: reply["env_idx"],
        reset=lambda index: {"seed": 0, "idx": index},
        score=lambda reply: reply["reward"] if reply["terminated"] else 0.0,
        done=lambda reply: reply["terminated"] or reply["truncated"],
    ),
}
