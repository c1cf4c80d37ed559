"""One episode: agent and environment take turns, from the first observation to the outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from configs.experiment import SLOWEST_TOKEN_SECONDS, Rollout
from environments.door import EpisodeClient
from environments.errors import EnvironmentCallError, WrongWorldError
from tasks.agents.agent import Agent, Budgets, Conversation, Message, NoActionError, TokenBudgetError
from tasks.inference.engine import EngineError
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

UPDATE_SECONDS = 1800.0
"""Longest pause of an episode while the trainer updates, for the leases of off-policy episodes."""

# Rewards are sums of floats: a score this close below another counts as that.
ROUNDING = 1e-6


def is_success(score: float, success_score: float = 1.0) -> bool:
    """Whether an episode that the world ended with this score is a success."""
    return score >= success_score - ROUNDING


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to play.

    Attributes:
        task: Task index.
        group: Number of its group in the batch.
        member: Its place in the group.
        seed: Seed of its sampling.
    """

    task: int
    group: int
    member: int
    seed: int


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What all episodes of a batch share.

    Attributes:
        horizon: Most turns.
        temperature: Sampling temperature; 0 is greedy.
    """

    horizon: int
    temperature: float


async def play_with_retries(
    request: RolloutRequest,
    settings: RolloutSettings,
    rollout: Rollout,
    environment: str,
    client: EpisodeClient,
    agent: Agent,
    pause: GenerationPause,
    success_score: float = 1.0,
    begun: Callable[[Trajectory], None] = lambda _: None,
) -> Trajectory:
    """Plays an episode, and again with a fresh session and the same seed while it fails, up to `rollout.retries` times; see `play`."""
    for attempt in range(1, rollout.retries + 2):
        trajectory = await play(request, settings, rollout, environment, client, agent, pause, success_score, begun)
        trajectory.attempts = attempt
        if trajectory.outcome is not Outcome.FAILED:
            break
    return trajectory


async def play(
    request: RolloutRequest,
    settings: RolloutSettings,
    rollout: Rollout,
    environment: str,
    client: EpisodeClient,
    agent: Agent,
    pause: GenerationPause,
    success_score: float = 1.0,
    begun: Callable[[Trajectory], None] = lambda _: None,
) -> Trajectory:
    """Plays one episode and returns it, whatever happens to it.

    A fault of the engine or of the environment, or an exceeded deadline, gives the outcome `failed` with the fault as the
    reason; the turns played so far stay for diagnosis. Cancellation is passed on. The session is closed in every case.

    Args:
        request: What is played.
        settings: What the batch shares.
        rollout: Budgets and deadlines. Time in a pause of the generation does not count.
        environment: Name of the world.
        client: Where its servers are.
        agent: Who plays.
        pause: Holds up each message while generation is paused.
        success_score: The score from which an episode that the world ended is a success.
        begun: Called with the trajectory before its first turn; turns are added to it while it is played.

    Raises:
        WrongWorldError: A server hosts something else than is to be played: no episode can be played until that is mended.
    """
    trajectory = not_played(request, settings, environment, agent, "")
    begun(trajectory)
    trajectory.began, began = time.time(), time.perf_counter()
    try:
        async with asyncio.timeout(rollout.episode_seconds) as deadline:
            await _play(trajectory, settings, rollout, client, agent, pause, deadline, success_score)
    except WrongWorldError:
        raise
    except (EnvironmentCallError, EngineError) as fault:
        trajectory.outcome, trajectory.reason = Outcome.FAILED, f"{type(fault).__name__}: {fault}"
    except TimeoutError:
        trajectory.outcome = Outcome.FAILED
        trajectory.reason = f"deadline: the episode took more than {rollout.episode_seconds or 0:g} s (rollout.episode_seconds)"
    trajectory.seconds = time.perf_counter() - began
    return trajectory


def not_played(request: RolloutRequest, settings: RolloutSettings, environment: str, agent: Agent, reason: str) -> Trajectory:
    """The trajectory of an episode of which nothing was played: no turns, outcome `failed`."""
    return Trajectory(
        environment=environment,
        task=request.task,
        group=request.group,
        member=request.member,
        seed=request.seed,
        horizon=settings.horizon,
        policy_version=agent.version,
        engine=agent.name,
        reason=reason,
    )


async def _play(
    trajectory: Trajectory,
    settings: RolloutSettings,
    rollout: Rollout,
    client: EpisodeClient,
    agent: Agent,
    pause: GenerationPause,
    deadline: asyncio.Timeout,
    success_score: float,
) -> None:
    session, observation = await client.start(trajectory.task, lease_s=_lease(rollout))
    conversation: Conversation | None = None
    try:
        trajectory.first_observation = observation
        budgets = Budgets(settings.temperature, rollout.turn_tokens, rollout.trajectory_tokens)
        conversation = await agent.begin(trajectory.task, trajectory.seed, observation, budgets)
        trajectory.prompt = conversation.prompt
        for number in range(settings.horizon):
            await _enter(pause, deadline)
            try:
                asked = time.time()
                message, seconds = await _generate(number, rollout, agent, conversation)
            finally:
                pause.leave()
            state_key = session.state_key
            turn, done = await _answer(message, client, session)
            turn.state_key = state_key
            turn.began, turn.generate_seconds = asked, seconds
            trajectory.turns.append(turn)
            if done:
                trajectory.outcome = Outcome.SUCCESS if is_success(trajectory.reward, success_score) else Outcome.FINISHED
                return
            if number + 1 < settings.horizon:
                turn.observation_tokens = await conversation.observe(turn.observation)
        trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "horizon"
    except (TokenBudgetError, NoActionError) as end:
        trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, str(end)
    finally:
        if conversation is not None:
            await conversation.close()
        # The lease ends a session that cannot be closed now.
        with suppress(EnvironmentCallError, TimeoutError):
            await client.close(session)


async def _enter(pause: GenerationPause, deadline: asyncio.Timeout) -> None:
    """Waits while generation is paused; the episode's deadline is moved by that time."""
    if not pause.paused:
        await pause.enter()
        return
    loop, when = asyncio.get_running_loop(), deadline.when()
    left = None if when is None else when - loop.time()
    deadline.reschedule(None)
    await pause.enter()
    deadline.reschedule(None if left is None else loop.time() + left)


async def _generate(number: int, rollout: Rollout, agent: Agent, conversation: Conversation) -> tuple[Message, float]:
    """The agent's next message, and the seconds that it took.

    The deadline bounds the time without progress of the agent, not the time of the message: it would end long messages first.

    Raises:
        EngineError: The agent made no progress for `rollout.turn_seconds`; this is noticed after at most twice that time.
    """
    loop, began, seconds = asyncio.get_running_loop(), time.perf_counter(), rollout.turn_seconds
    seen, unseen_seconds = agent.progress, rollout.turn_tokens * SLOWEST_TOKEN_SECONDS
    if seen is None:
        seconds += unseen_seconds
    next_look = loop.call_later(seconds, lambda: look())

    def look() -> None:
        nonlocal seen, next_look
        before, seen = seen, agent.progress
        if seen == before:
            deadline.reschedule(loop.time())
        else:
            next_look = loop.call_later(unseen_seconds if seen is None else seconds, look)

    try:
        async with asyncio.timeout(None) as deadline:
            message = await conversation.act(number)
    except TimeoutError:
        raise EngineError(f"no progress within {seconds:g} s (rollout.turn_seconds)") from None
    finally:
        next_look.cancel()
    return message, time.perf_counter() - began


async def _answer(message: Message, client: EpisodeClient, session: Any) -> tuple[Turn, bool]:
    """The turn that a message makes with its answer, and whether the world has ended the episode."""
    turn = Turn(
        tokens=message.tokens,
        log_probabilities=message.log_probabilities,
        action=message.action or "",
        message=message.text,
        policy_version=message.policy_version,
        cut=message.cut,
    )
    if message.action is None:
        turn.malformed, turn.observation = True, message.problem
        return turn, False
    began = time.perf_counter()
    step = await client.step(session, message.action)
    turn.environment_seconds = time.perf_counter() - began
    turn.observation, turn.reward, turn.refused = step.observation, step.reward, step.refused
    return turn, step.done


def _lease(rollout: Rollout) -> float:
    """A session may rest for a message of full length and, off-policy, for an update; the margin covers a busy loop.

    An engine that is slower than SLOWEST_TOKEN_SECONDS may lose sessions. Such episodes fail, and are counted.
    """
    message = rollout.turn_seconds * 2 + rollout.turn_tokens * SLOWEST_TOKEN_SECONDS
    return message + 60 + (UPDATE_SECONDS if rollout.max_off_policy_steps else 0)
