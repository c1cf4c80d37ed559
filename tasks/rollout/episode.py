"""One episode: the policy and the world take turns, token in, token out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass

from configs.experiment import Rollout
from environments.client import EnvironmentClient, EnvironmentFault, Session
from tasks.policy.dialogue import Dialogue, MalformedAction
from tasks.policy.engine import Engine, EngineFault, Sampling
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

# Rewards are sums of floats; a score this close to 1 is the full score.
FULL_SCORE = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """What is to be played.

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
class Conditions:
    """What is the same for all episodes of a batch.

    Attributes:
        horizon: Most turns.
        temperature: Sampling temperature; 0 is greedy.
        policy_version: Training step of the weights.
    """

    horizon: int
    temperature: float
    policy_version: int


def stable_seed(*parts: int | str) -> int:
    """A 48-bit seed that depends on `parts` alone, on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


async def play(
    plan: EpisodePlan,
    conditions: Conditions,
    rollout: Rollout,
    environment: str,
    client: EnvironmentClient,
    engine: Engine,
    dialogue: Dialogue,
) -> Trajectory:
    """Plays one episode and returns it, whatever happens to it.

    A fault of the engine or of the environment, or an exceeded deadline, gives the outcome `failed` with the fault as the
    reason; the turns played so far stay for diagnosis. Cancellation is passed on. The session is closed in every case.
    """
    trajectory = Trajectory(
        environment=environment,
        task=plan.task,
        group=plan.group,
        member=plan.member,
        seed=plan.seed,
        horizon=conditions.horizon,
        policy_version=conditions.policy_version,
        engine=engine.name,
    )
    began = time.perf_counter()
    try:
        async with asyncio.timeout(rollout.episode_seconds):
            await _play(trajectory, conditions, rollout, client, engine, dialogue)
    except (EnvironmentFault, EngineFault) as fault:
        trajectory.outcome, trajectory.reason = Outcome.FAILED, f"{type(fault).__name__}: {fault}"
    except TimeoutError:
        trajectory.outcome = Outcome.FAILED
        trajectory.reason = f"deadline: the episode took more than {rollout.episode_seconds:g} s (rollout.episode_seconds)"
    trajectory.seconds = time.perf_counter() - began
    return trajectory


async def _play(
    trajectory: Trajectory, conditions: Conditions, rollout: Rollout, client: EnvironmentClient, engine: Engine, dialogue: Dialogue
) -> None:
    session, observation = await client.start(trajectory.task, lease_s=_lease(rollout))
    try:
        trajectory.first_observation = observation
        trajectory.prompt = dialogue.prompt(observation)
        context = list(trajectory.prompt)
        for number in range(conditions.horizon):
            room = min(rollout.trajectory_tokens, engine.context_length) - len(context)
            if room < 1:
                trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "rollout.trajectory_tokens"
                return
            sampling = Sampling(
                temperature=conditions.temperature,
                max_tokens=min(rollout.turn_tokens, room),
                stop_tokens=dialogue.stop_tokens,
                seed=stable_seed(trajectory.seed, number),
            )
            turn = await _take_turn(context, sampling, rollout, client, session, engine, dialogue)
            trajectory.turns.append(turn.turn)
            if turn.done:
                trajectory.outcome = Outcome.SUCCESS if trajectory.reward >= FULL_SCORE else Outcome.FINISHED
                return
            reply = dialogue.reply(turn.turn.observation, turn.turn.tokens)
            context += turn.turn.tokens + reply
            if number + 1 == conditions.horizon:
                trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "horizon"
            elif len(context) >= min(rollout.trajectory_tokens, engine.context_length):
                trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "rollout.trajectory_tokens"
                return
            else:
                turn.turn.observation_tokens = reply
    finally:
        # The lease ends a session that cannot be closed now.
        with suppress(EnvironmentFault, TimeoutError):
            await client.close(session)


@dataclass(slots=True)
class _Taken:
    turn: Turn
    done: bool


async def _take_turn(
    context: list[int],
    sampling: Sampling,
    rollout: Rollout,
    client: EnvironmentClient,
    session: Session,
    engine: Engine,
    dialogue: Dialogue,
) -> _Taken:
    began = time.perf_counter()
    try:
        generation = await asyncio.wait_for(engine.generate(context, sampling), rollout.turn_seconds)
    except TimeoutError:
        raise EngineFault(f"no answer within {rollout.turn_seconds:g} s (rollout.turn_seconds)") from None
    generated = time.perf_counter()
    turn = Turn(tokens=generation.tokens, log_probabilities=generation.log_probabilities, action="")
    turn.generate_seconds = generated - began
    try:
        turn.action = dialogue.action(generation.tokens)
    except MalformedAction as problem:
        turn.malformed, turn.observation = True, str(problem)
        return _Taken(turn, done=False)
    step = await client.step(session, turn.action)
    turn.environment_seconds = time.perf_counter() - generated
    turn.observation, turn.reward = step.observation, step.reward
    return _Taken(turn, step.done)


def _lease(rollout: Rollout) -> float:
    """A session may rest for a turn of the engine; the margin covers a busy loop."""
    return rollout.turn_seconds * 2 + 60
