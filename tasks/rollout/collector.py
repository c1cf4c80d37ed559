"""The collector: many episodes in flight, each at its own pace.

There is no round and no barrier: an episode asks the engine for its next turn as soon as its environment has answered. What is in
flight is bounded, faults are retried with fresh sessions, and what comes back is in the order of the plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs.experiment import Rollout
from environments.client import EnvironmentClient
from tasks.policy.dialogue import Dialogue
from tasks.policy.engine import Engine
from tasks.rollout.episode import Conditions, EpisodePlan, play
from tasks.rollout.trajectory import Outcome, Trajectory

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Collector:
    """Plays batches of episodes with one engine against the servers of one environment.

    Attributes:
        environment: Name of the world, for the records.
        urls: Addresses of its servers.
        engine: What generates.
        dialogue: How the policy speaks.
        rollout: Budgets, deadlines, bounds.
    """

    environment: str
    urls: tuple[str, ...]
    engine: Engine
    dialogue: Dialogue
    rollout: Rollout

    async def collect(self, plans: Sequence[EpisodePlan], conditions: Conditions, progress: Progress | None = None) -> list[Trajectory]:
        """Plays all episodes of `plans` and returns their trajectories in the same order.

        An episode that fails is played again with a fresh session and the same seed, up to `rollout.retries` times; if it
        fails still, its trajectory has the outcome `failed`.

        Args:
            plans: The episodes.
            conditions: What they share.
            progress: Called with (finished, all) after each episode.
        """
        slots = asyncio.Semaphore(self.rollout.in_flight)
        finished = 0

        async with EnvironmentClient(self.urls, deadline_s=self.rollout.turn_seconds) as client:

            async def run(plan: EpisodePlan) -> Trajectory:
                nonlocal finished
                async with slots:
                    trajectory = await self._play_until_sound(plan, conditions, client)
                finished += 1
                if progress is not None:
                    progress(finished, len(plans))
                return trajectory

            async with asyncio.TaskGroup() as group:
                episodes = [group.create_task(run(plan)) for plan in plans]
        return [episode.result() for episode in episodes]

    async def _play_until_sound(self, plan: EpisodePlan, conditions: Conditions, client: EnvironmentClient) -> Trajectory:
        for attempt in range(1, self.rollout.retries + 2):
            trajectory = await play(plan, conditions, self.rollout, self.environment, client, self.engine, self.dialogue)
            trajectory.attempts = attempt
            if trajectory.outcome is not Outcome.FAILED:
                break
        return trajectory


def whole_groups(trajectories: Sequence[Trajectory]) -> tuple[list[list[Trajectory]], int]:
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
