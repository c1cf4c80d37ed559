"""Scripted policies: oracle (the world's expert) and random valid action.

They need the state of a world, which the server does not expose. Therefore each episode is also
played in a local copy of the environment, stepped in lock-step with the server's. The same task and
the same actions give the same observations everywhere. Every observation is checked for that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from environments.environment import Environment, OracleError, World, WorldError
from environments.errors import WrongWorldError
from environments.tools import ToolCallError
from tasks.agents.action_format import ActionFormat
from tasks.agents.agent import Budgets, Message, NoActionError
from tasks.agents.chat_format import ChatFormat, of_task
from tasks.agents.retokenisation import Retokenisation
from tasks.inference.engine import EngineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScriptedAgent:
    """An `Agent` that plays the oracle or random valid actions.

    Attributes:
        name: "oracle", or "random" (uniform over the environment's `valid_actions`).
        world: The world, in the version that the servers host.
        action_format: Format in which a message gives its action. For "react" the oracle also
            writes its thought, if its world provides one.
        chat_formats: Add token ids to the trajectories, for a policy that is trained on them. As in
            `TokenAgent`.
    """

    world: World
    action_format: ActionFormat
    chat_formats: Sequence[ChatFormat] = ()
    name: Literal["oracle", "random"] = "oracle"
    version: int = 0
    kv_cache_tokens: int | None = None
    out_of_process: bool = False
    progress: int | None = 0  # a script writes no tokens, so its turn has the plain deadline

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> ScriptedConversation:
        """Begin an episode, as in `Agent.begin`."""
        environment = self.world.create()
        if self.name == "random" and "valid_actions" not in environment.offers:
            environment.close()
            raise WrongWorldError(
                f"the world {self.world.name} has no valid_actions, so the random policy cannot "
                "play it"
            )
        retokenisation = Retokenisation(
            of_task(self.chat_formats, task) if self.chat_formats else None,
            self.action_format,
            observation,
            of_task(self.world.tool_lists, task),
            budgets,
        )
        conversation = ScriptedConversation(self, task, seed, environment, retokenisation)
        try:
            await conversation.start(observation)
        except BaseException:
            await conversation.close()
            raise
        return conversation


class ScriptedConversation:
    """One episode of a `ScriptedAgent`."""

    def __init__(
        self,
        agent: ScriptedAgent,
        task: int,
        seed: int,
        environment: Environment,
        retokenisation: Retokenisation,
    ) -> None:
        """Wrap `environment`, the local copy of the episode's environment."""
        self.prompt = retokenisation.prompt
        self._blocking = agent.world.blocking
        self._task = task
        self._environment = environment
        is_oracle = agent.name == "oracle"
        self._choose = environment.oracle_action if is_oracle else self._random_action
        self._think = environment.oracle_thought if is_oracle else str
        self._random = random.Random(seed)
        self._retokenisation = retokenisation
        self._action: str | None = None

    async def start(self, observation: str) -> None:
        """Reset the local copy and compare its first observation."""
        self._check_equal(
            observation, await self._run_blocking(lambda: self._environment.reset(self._task))
        )

    async def act(self, turn: int) -> Message:
        """Return the script's action, as in `Conversation.act`."""
        try:
            thought, action = await self._run_blocking(lambda: (self._think(), self._choose()))
        except OracleError as error:
            raise NoActionError(
                f"the scripted policy has no action in task {self._task} at turn {turn}: {error}"
            ) from error
        self._action = action
        try:
            return self._retokenisation.demonstration(action, thought)
        except ToolCallError as unfit:
            raise NoActionError(
                f"the scripted policy's action in task {self._task} at turn {turn} is no tool "
                f"call: {unfit}"
            ) from unfit

    def recall(self, message: Message) -> None:
        """Record an earlier message, as in `Conversation.recall`."""
        self._action = message.action
        self._retokenisation.message(message.text)

    async def observe(self, observation: str) -> list[int]:
        """Repeat the last action in the local copy, as in `Conversation.observe`."""
        action, self._action = self._action, None
        # a recalled message without an action was answered without a step of the world
        if action is not None:
            self._check_equal(
                observation,
                (await self._run_blocking(lambda: self._environment.step(action))).observation,
            )
        return self._retokenisation.reply(observation)

    async def close(self) -> None:
        """Close the local copy."""
        await self._run_blocking(self._environment.close)

    def _random_action(self) -> str:
        # checked in `begin`
        return self._random.choice(self._environment.valid_actions())

    def _check_equal(self, server_text: str, local_text: str) -> None:
        if server_text != local_text:
            raise EngineError(
                f"the server and the local copy of task {self._task} give different observations: "
                f"{server_text[:80]!r} and {local_text[:80]!r}. Use a server with the same version "
                "of the world."
            )

    async def _run_blocking(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work) if self._blocking else work()
        except OracleError:
            raise
        except WorldError as fault:
            raise EngineError(f"the local copy of task {self._task} failed: {fault}") from fault
