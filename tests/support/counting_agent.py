"""An agent for the counting world that adds 1 until the goal is reached and can be paused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.agents.agent import Budgets, Message


@dataclass
class CountingAgent:
    """An agent whose only token of a turn is the turn's number.

    Attributes:
        held: Events by task. The task's turns wait until its event is set.
        spoken: Task and turn of each message, in order.
    """

    version: int = 0
    name: str = "counting"
    kv_cache_tokens: int | None = None
    out_of_process: bool = True
    progress: int | None = 0
    held: dict[int, threading.Event] = field(default_factory=dict)
    action: Callable[[int, int], str] = lambda task, turn: "add 1"
    spoken: list[tuple[int, int]] = field(default_factory=list)

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> CountingConversation:
        assert observation == f"Goal: {task}."
        return CountingConversation(self, task)


class CountingConversation:
    def __init__(self, agent: CountingAgent, task: int) -> None:
        self.prompt = [task]
        self._agent = agent
        self._task = task

    async def act(self, turn: int) -> Message:
        version = self._agent.version
        self._agent.spoken.append((self._task, turn))
        held = self._agent.held.get(self._task)
        while held is not None and not held.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)
        action = self._agent.action(self._task, turn)
        return Message(
            action, action, tokens=[turn], log_probabilities=[-1.0], policy_version=version
        )

    def recall(self, message: Message) -> None:
        pass

    async def observe(self, observation: str) -> list[int]:
        return [7]

    async def close(self) -> None:
        pass
