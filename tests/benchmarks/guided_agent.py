"""An agent whose random policy samples the messages, while the expert's actions are performed.

Its episodes are as long as those of a trained policy, at a low cost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from environments.client import EnvironmentClient, Session
from environments.environment import Step
from environments.registry import load_world
from tasks.agents.agent import Budgets, Message
from tasks.agents.token_agent import TokenAgent, TokenConversation

HORIZON = 30

Latency = Callable[[int, int], float]
"""A function from task and turn to the additional seconds of the environment's step."""


def no_latency(task: int, turn: int) -> float:
    return 0.0


def exponential(task: int, turn: int) -> float:
    return random.Random(f"{task} {turn}").expovariate(1 / 0.3)


def heavy_tail(task: int, turn: int) -> float:
    draw = random.Random(f"{task} {turn}")
    return 2.0 if draw.random() < 0.02 else draw.expovariate(1 / 0.1)


def slow(task: int, turn: int) -> float:
    return random.Random(f"{task} {turn}").expovariate(1 / 0.02)


class GuidedAgent(TokenAgent):
    """An agent whose engine samples the messages and whose actions are the expert's.

    Attributes:
        solutions: The expert's actions by task.
    """

    solutions: dict[int, list[str]]  # set after construction, because the base class is frozen

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> GuidedConversation:
        return GuidedConversation(self, task, seed, self.chat_format.prompt(observation), budgets)


class GuidedConversation(TokenConversation):
    """One episode of a `GuidedAgent`."""

    def __init__(
        self, agent: GuidedAgent, task: int, seed: int, prompt: list[int], budgets: Budgets
    ) -> None:
        super().__init__(agent, seed, prompt, budgets)
        self._solution = agent.solutions[task]

    async def act(self, turn: int) -> Message:
        sampled = await super().act(turn)
        return Message(
            sampled.text,
            self._solution[turn],
            "",
            sampled.tokens,
            sampled.log_probabilities,
            sampled.policy_version,
            sampled.cut,
        )


class DelayedClient(EnvironmentClient):
    """A client that delays each step by a latency."""

    latency: Latency = staticmethod(no_latency)

    async def step(self, session: Session, action: str) -> Step:
        if seconds := self.latency(session.index, session.turn):
            await asyncio.sleep(seconds)
        return await super().step(session, action)


def expert_solutions() -> dict[int, list[str]]:
    """Return the expert's actions by training task, in a random order.

    Tasks that need more than `HORIZON` turns are left out.
    """
    world, found = load_world("textcraft"), {}
    tasks = list(world.tasks("train"))
    random.Random(0).shuffle(tasks)
    for task in tasks:
        environment, actions, done = world.create(), [], False
        environment.reset(task)
        with suppress(Exception):
            while not done and len(actions) < HORIZON:
                actions.append(environment.oracle_action())
                done = environment.step(actions[-1]).done
        if done:
            found[task] = actions
    return found
