"""The wires of AgentGym's environment servers: how each world's server is asked and its answers are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from environments.action_text import plain_words


@dataclass(frozen=True)
class Wire:
    """How one world's server is asked and read.

    Attributes:
        field: What requests call the session.
        create: The body of create.
        session: The session's number in create's reply.
        reset: The body of reset beside the session, from the task index.
        first: The first observation in reset's reply.
        score: What the policy has earned, in step's reply, before division by `full`.
        running: Whether `score` is the episode's total so far, not what the last action earned.
        full: The score of success.
        reward_range: The least and the greatest reward of one action, after division by `full`.
        done: Whether the episode has ended, in step's reply.
        sent: An action as AgentGym's own client would send it.
        greeting: What GET / answers.
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
        reward_range=(-1000.0, 1.0),  # 1 - 0.9 steps / limit, and an episode may outlast the limit
        sent=plain_words,
        greeting="This is environment BabyAI.",
    ),
    "sciworld": Wire(
        first=lambda reply: f"{reply['task_description']}\n{reply['observation']}",
        score=lambda reply: reply["score"],  # -100 says that the task was failed
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
