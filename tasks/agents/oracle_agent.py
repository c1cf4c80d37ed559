"""The world's oracle (expert policy) as an agent.

The expert knows the state of a world, and the server does not tell it. So each episode is played a second time beside the server's,
in this process; as the same task and the same actions give the same observations everywhere, both stay alike, and that is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from environments.environment import Environment, OracleError, World, WorldError
from tasks.agents.action_format import ActionFormat
from tasks.agents.agent import Budgets, Message
from tasks.agents.chat_format import ChatFormat
from tasks.agents.retokenisation import Retokenisation
from tasks.inference.engine import EngineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OracleAgent:
    """An `Agent` that does what the world's expert would.

    Attributes:
        world: The world, of the same version as the servers'.
        action_format: How a message says its action; "react" gets an empty thought.
        chat_format: Adds token ids to the trajectories, for a policy that is to learn from them.
    """

    world: World
    action_format: ActionFormat
    chat_format: ChatFormat | None = None
    name: str = "oracle"
    version: int = 0
    kv_cache_tokens: int | None = None
    out_of_process: bool = False

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> OracleConversation:
        """Begins an episode; see `Agent.begin`."""
        conversation = OracleConversation(
            self, task, self.world.create(), Retokenisation(self.chat_format, self.action_format, observation)
        )
        try:
            await conversation.start(observation)
        except BaseException:
            await conversation.close()
            raise
        return conversation


class OracleConversation:
    """One episode of an `OracleAgent`."""

    def __init__(self, agent: OracleAgent, task: int, environment: Environment, retokenisation: Retokenisation) -> None:
        """`environment` is the episode's double in this process."""
        self.prompt = retokenisation.prompt
        self._blocking = bool(getattr(agent.world, "blocking", False))
        self._action_format = agent.action_format
        self._task = task
        self._environment = environment
        self._retokenisation = retokenisation
        self._action: str | None = None

    async def start(self, observation: str) -> None:
        """Begins the double's episode."""
        self._same(observation, await self._do(lambda: self._environment.reset(self._task)))

    async def act(self, turn: int) -> Message:
        """The expert's action; see `Conversation.act`."""
        try:
            action = await self._do(self._environment.oracle_action)
        except OracleError as helpless:
            raise EngineError(f"the oracle has no solution of task {self._task} at turn {turn}: {helpless}") from helpless
        self._action = action
        return self._retokenisation.message(action if self._action_format == "bare" else f"Thought:\n\nAction:\n{action}")

    def recall(self, message: Message) -> None:
        """See `Conversation.recall`."""
        self._action = message.action
        self._retokenisation.message(message.text)

    async def observe(self, observation: str) -> list[int]:
        """Does the last action in the double too; see `Conversation.observe`."""
        action, self._action = self._action, None
        if action is not None:  # a recalled message without an action was answered without asking the world
            self._same(observation, (await self._do(lambda: self._environment.step(action))).observation)
        return self._retokenisation.reply(observation)

    async def close(self) -> None:
        """Ends the double."""
        await self._do(self._environment.close)

    def _same(self, theirs: str, ours: str) -> None:
        if theirs != ours:
            raise EngineError(
                f"task {self._task} goes otherwise on the server than here ({theirs[:80]!r}, not {ours[:80]!r}): "
                "it hosts another version of the world"
            )

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work) if self._blocking else work()
        except OracleError:
            raise
        except WorldError as fault:
            raise EngineError(f"the world failed beside the server, in task {self._task}: {fault}") from fault
