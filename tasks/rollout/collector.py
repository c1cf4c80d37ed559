"""The collector: many episodes in flight, each at its own pace.

There is no round and no barrier: an episode asks the engine for its next turn as soon as its environment has answered. What is in
flight is bounded, faults are retried with fresh sessions, and what comes back is in the order of the plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from configs.experiment import Rollout
from configs.rules import Dialect
from environments.door import EpisodeClient, open_client
from environments.errors import WrongWorldError
from tasks.agents.agent import Policy
from tasks.rollout.concurrency import ConcurrencyLimit
from tasks.rollout.episode import RolloutRequest, RolloutSettings, play
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Outcome, Trajectory

Progress = Callable[[int, int], None]
Finished = Callable[[Trajectory], None]


@dataclass(slots=True)
class Collector:
    """Plays batches of episodes of one policy against the servers of one environment.

    Attributes:
        environment: Name of the world, for the records.
        urls: Addresses of its servers.
        policy: Who plays.
        rollout: Budgets, deadlines, bounds.
        dialect: What the servers speak.
        identity: `WorldInfo.identity` of the world that they must host; empty: any.
        success_score: The score from which an episode that the world ended is a success.
        concurrency: How many episodes may be under way.
    """

    environment: str
    urls: tuple[str, ...]
    policy: Policy
    rollout: Rollout
    dialect: Dialect = "ours"
    identity: str = ""
    success_score: float = 1.0
    concurrency: ConcurrencyLimit = field(init=False)

    def __post_init__(self) -> None:
        self.concurrency = ConcurrencyLimit(
            self.rollout.max_concurrent_episodes, self.rollout.trajectory_tokens, lambda: self.policy.kv_cache_tokens
        )

    async def collect(
        self, plans: Sequence[RolloutRequest], conditions: RolloutSettings, progress: Progress | None = None
    ) -> list[Trajectory]:
        """Plays all episodes of a batch and returns their trajectories in the order of `plans`.

        An episode that fails is played again with a fresh session and the same seed, up to `rollout.retries` times; if it
        fails still, its trajectory has the outcome `failed`. So have those that are not finished after `rollout.batch_seconds`.

        Args:
            plans: The episodes; no two have the same group and member.
            conditions: What they share.
            progress: Called with (finished, all) after each episode.
        """
        done: dict[tuple[int, int], Trajectory] = {}

        def finished(trajectory: Trajectory) -> None:
            done[trajectory.group, trajectory.member] = trajectory
            if progress is not None:
                progress(len(done), len(plans))

        with suppress(TimeoutError):
            async with asyncio.timeout(self.rollout.batch_seconds):
                await self.play_all(plans, conditions, finished)
        return [done.get((plan.group, plan.member)) or self.given_up(plan, conditions) for plan in plans]

    async def play_all(self, plans: Sequence[RolloutRequest], conditions: RolloutSettings, finished: Finished) -> None:
        """Plays any number of episodes and calls `finished` with each trajectory when it is there; nothing else is kept of them."""
        waiting = iter(plans)

        async with self.client() as client:

            async def play_in_turn() -> None:
                for plan in waiting:
                    async with self.concurrency.slot():
                        trajectory = await self.play_with_retries(plan, conditions, client)
                    finished(trajectory)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self.rollout.max_concurrent_episodes, len(plans))):
                        group.create_task(play_in_turn())
            except ExceptionGroup as group:
                wrong = group.subgroup(WrongWorldError)
                raise (wrong.exceptions[0] if wrong else group) from None

    def client(self) -> EpisodeClient:
        """A client of the environment's servers, with room for a request of every episode in flight."""
        return open_client(
            self.urls,
            self.environment,
            self.dialect,
            expected=self.identity,
            deadline_s=self.rollout.turn_seconds,
            connections=self.rollout.max_concurrent_episodes,
        )

    async def play_with_retries(
        self, plan: RolloutRequest, conditions: RolloutSettings, client: EpisodeClient, pause: GenerationPause | None = None
    ) -> Trajectory:
        """Plays an episode, and again while it fails, up to `rollout.retries` times."""
        for attempt in range(1, self.rollout.retries + 2):
            trajectory = await play(plan, conditions, self.rollout, self.environment, client, self.policy, pause, self.success_score)
            trajectory.attempts = attempt
            if trajectory.outcome is not Outcome.FAILED:
                break
        self.concurrency.observe(trajectory)
        return trajectory

    def given_up(self, plan: RolloutRequest, conditions: RolloutSettings) -> Trajectory:
        """The record of an episode that the batch's deadline has ended."""
        return Trajectory(
            environment=self.environment,
            task=plan.task,
            group=plan.group,
            member=plan.member,
            seed=plan.seed,
            horizon=conditions.horizon,
            policy_version=self.policy.version,
            engine=self.policy.name,
            reason=f"deadline: the batch took more than {self.rollout.batch_seconds:g} s (rollout.batch_seconds)",
        )


def complete_groups(trajectories: Sequence[Trajectory]) -> tuple[list[list[Trajectory]], int]:
    """Sorts trajectories into groups and leaves out each group that has a failed member.

    Returns:
        The whole groups, members in order, and the number of groups left out.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    whole = [
        sorted(members, key=lambda t: t.member)
        for _, members in sorted(groups.items())
        if all(t.outcome is not Outcome.FAILED for t in members)
    ]
    return whole, len(groups) - len(whole)
