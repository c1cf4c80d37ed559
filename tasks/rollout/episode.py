"""One episode: agent and environment take turns from the first observation to the outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from configs.experiment import SLOWEST_TOKEN_SECONDS, Rollout
from environments.errors import (
    FULL,
    BusyError,
    DeadlineExceededError,
    EnvironmentCallError,
    WrongWorldError,
)
from environments.handshake import EpisodeClient
from environments.protocol import MAX_LEASE_S
from tasks.agents.agent import (
    Agent,
    Budgets,
    Conversation,
    Message,
    NoActionError,
    TokenBudgetError,
)
from tasks.inference.engine import EngineError
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

UPDATE_SECONDS = 1800.0
"""Longest pause of an episode during a trainer update, in seconds. Used for off-policy leases."""

# Rewards are sums of floats: scores are compared with this tolerance.
ROUNDING = 1e-6


def outcome_of(score: float, success_score: float) -> Outcome:
    """Return the outcome of an episode that the world ended with this score."""
    return Outcome.SUCCESS if score >= success_score - ROUNDING else Outcome.FINISHED


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to play.

    Attributes:
        group: Index of its group in the batch.
        member: Index within the group.
        seed: Seed for sampling.
    """

    task: int
    group: int
    member: int
    seed: int


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings shared by all episodes of a batch.

    Attributes:
        horizon: Maximum number of turns.
        temperature: Sampling temperature. 0 is greedy.
    """

    horizon: int
    temperature: float


@dataclass(frozen=True, slots=True)
class EpisodePlayer:
    """Plays the episodes of one agent in one world.

    Attributes:
        environment: Name of the world.
        agent: The agent that plays.
        rollout: Budgets, deadlines and retries. Waiting for the end of a generation pause does not count.
        success_score: Lowest score of an episode ended by the world that counts as a success.
        pause: Blocks new messages while generation is paused.
    """

    environment: str
    client: EpisodeClient
    agent: Agent
    rollout: Rollout
    success_score: float
    pause: GenerationPause

    async def play(
        self,
        request: RolloutRequest,
        settings: RolloutSettings,
        begun: Callable[[Trajectory], None],
    ) -> Trajectory:
        """Play one episode and return its trajectory, also after a fault.

        A failed episode is retried up to `rollout.retries` times, with a fresh session and the same
        seed.

        Args:
            settings: Settings of the batch.
            begun: Called with the trajectory of each attempt before its first turn. Turns are
                appended as they are played.

        Raises:
            WrongWorldError: A server hosts another world. No episode can be played until that is
                fixed.
        """
        for attempt in range(1, self.rollout.retries + 2):
            trajectory = self.unplayed(request, settings)
            trajectory.attempts = attempt
            begun(trajectory)
            async with AsyncExitStack() as sessions:
                await self._attempt(trajectory, settings.temperature, sessions)
            if trajectory.outcome is not Outcome.FAILED:
                break
        return trajectory

    def unplayed(self, request: RolloutRequest, settings: RolloutSettings) -> Trajectory:
        """Return the trajectory of an unplayed episode: no turns, outcome `failed`."""
        return Trajectory(
            environment=self.environment,
            task=request.task,
            group=request.group,
            member=request.member,
            seed=request.seed,
            horizon=settings.horizon,
            policy_version=self.agent.version,
            engine=self.agent.name,
            reason="",
        )

    async def _attempt(
        self, trajectory: Trajectory, temperature: float, sessions: AsyncExitStack
    ) -> None:
        """Play the episode of a trajectory once, and record its outcome.

        A fault of the engine or the environment, or an exceeded deadline, gives the outcome
        `failed` with the fault as the reason. The turns played so far are kept for diagnosis.
        Cancellation is passed on. `sessions` closes the session, which no deadline cuts. The
        episode's deadline does not include the wait for a session.
        """
        limit = self.rollout.episode_seconds
        trajectory.began, began = time.time(), time.perf_counter()
        try:
            session, observation = await self._start(trajectory.task)
            sessions.push_async_callback(self.client.close, session)
            async with asyncio.timeout(limit) as deadline:
                await self._take_turns(trajectory, temperature, session, observation, deadline)
        except WrongWorldError:
            raise
        except (EnvironmentCallError, EngineError) as fault:
            trajectory.outcome = Outcome.FAILED
            trajectory.reason = f"{type(fault).__name__}: {fault}"
            if isinstance(fault, DeadlineExceededError):
                trajectory.reason += f" ({self.rollout.turn_seconds:g} s, rollout.turn_seconds)"
        except TimeoutError:
            trajectory.outcome = Outcome.FAILED
            trajectory.reason = (
                f"deadline: the episode took more than {limit or 0:g} s (rollout.episode_seconds)"
            )
        trajectory.seconds = time.perf_counter() - began

    async def _start(self, task: int) -> tuple[Any, str]:
        """Open a session and begin a task. While all sessions are in use, wait for one."""
        while True:
            try:
                return await self.client.start(task, lease_s=_lease(self.rollout))
            except BusyError as full:
                if full.code not in FULL:
                    raise

    async def _take_turns(
        self,
        trajectory: Trajectory,
        temperature: float,
        session: Any,
        observation: str,
        deadline: asyncio.Timeout,
    ) -> None:
        client, agent, rollout = self.client, self.agent, self.rollout
        conversation: Conversation | None = None
        try:
            trajectory.first_observation = observation
            budgets = Budgets(temperature, rollout.turn_tokens, rollout.trajectory_tokens)
            conversation = await agent.begin(trajectory.task, trajectory.seed, observation, budgets)
            trajectory.prompt = conversation.prompt
            for number in range(trajectory.horizon):
                async with self.pause.message(deadline):
                    began = time.time()
                    message, seconds = await self._generate(number, conversation)
                state_key = session.state_key
                turn, done = await perform(message, client, session)
                turn.state_key = state_key
                turn.began, turn.generate_seconds = began, seconds
                trajectory.turns.append(turn)
                if done:
                    trajectory.outcome = outcome_of(trajectory.reward, self.success_score)
                    return
                if number + 1 < trajectory.horizon:
                    turn.observation_tokens = await conversation.observe(turn.observation)
            trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "horizon"
        except (TokenBudgetError, NoActionError) as end:
            trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, str(end)
        finally:
            if conversation is not None:
                await conversation.close()

    async def _generate(self, number: int, conversation: Conversation) -> tuple[Message, float]:
        """Return the agent's next message and its generation time in seconds.

        The deadline limits the time without progress, not the time of the whole message. A limit on
        the whole message would always cut the longest messages.

        Raises:
            EngineError: The agent made no progress for `rollout.turn_seconds`. The detection takes
                at most twice that time.
        """
        agent, rollout = self.agent, self.rollout
        loop, began, seconds = asyncio.get_running_loop(), time.perf_counter(), rollout.turn_seconds
        progress = agent.progress
        unknown_progress_seconds = rollout.turn_tokens * SLOWEST_TOKEN_SECONDS
        if progress is None:
            seconds += unknown_progress_seconds
        next_check = loop.call_later(seconds, lambda: check_progress())

        def check_progress() -> None:
            nonlocal progress, next_check
            before, progress = progress, agent.progress
            if progress == before and not self.pause.frozen:
                deadline.reschedule(loop.time())
            else:
                next_check = loop.call_later(
                    unknown_progress_seconds if progress is None else seconds, check_progress
                )

        try:
            async with asyncio.timeout(None) as deadline:
                message = await conversation.act(number)
        except TimeoutError:
            raise EngineError(f"no progress within {seconds:g} s (rollout.turn_seconds)") from None
        finally:
            next_check.cancel()
        return message, time.perf_counter() - began


async def perform(message: Message, client: EpisodeClient, session: Any) -> tuple[Turn, bool]:
    """Execute a message's action and return the turn and whether the world ended the episode."""
    turn = Turn(
        tokens=message.tokens,
        log_probabilities=message.log_probabilities,
        action=message.action or "",
        message=message.text,
        policy_version=message.policy_version,
        cut=message.cut,
        context=message.context,
    )
    if message.action is None:
        turn.malformed, turn.observation = True, message.problem
        await client.keep(session)
        return turn, False
    began = time.perf_counter()
    step = await client.step(session, message.action)
    turn.environment_seconds = time.perf_counter() - began
    turn.observation, turn.reward, turn.refused = step.observation, step.reward, step.refused
    return turn, step.done


def _lease(rollout: Rollout) -> float:
    """Return the lease of a session in seconds.

    It covers a message of full length, an update if the rollout is off-policy, and a margin for a
    busy event loop, up to the longest lease that servers grant. An engine slower than
    SLOWEST_TOKEN_SECONDS may lose sessions. Such episodes fail and are counted.
    """
    message = rollout.turn_seconds * 2 + rollout.turn_tokens * SLOWEST_TOKEN_SECONDS
    update = UPDATE_SECONDS if rollout.max_off_policy_steps else 0
    return min(MAX_LEASE_S, message + 60 + update)
