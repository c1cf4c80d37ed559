"""A collection carried out: every group that is not on the writer yet is played, and put there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from configs.collection import Collection
from tasks.agents.agent import Policy
from tasks.rollout.collector import Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory import Trajectory

CHECK_S = 0.5


async def collect_to_disk(
    collection: Collection,
    plans: Sequence[RolloutRequest],
    policy: Policy,
    urls: Sequence[str],
    writer: ResumableTrajectoryWriter,
    *,
    finished: Callable[[Trajectory], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Plays the episodes of the groups that are missing. What is whole is written even when it ends in an exception.

    Args:
        collection: RolloutSettings and budgets.
        plans: All episodes of the collection.
        policy: Who plays.
        urls: Environment servers.
        writer: Where trajectories go.
        finished: Called with each trajectory.
        check: Called twice a second; raises when the environment servers are gone for good.
    """
    collector = Collector(collection.environment, tuple(urls), policy, collection.rollout)
    missing = [plan for plan in plans if not writer.has(plan.group, plan.member)]

    def keep(trajectory: Trajectory) -> None:
        writer.add(trajectory)
        finished(trajectory)

    async def watch() -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            check()

    playing = asyncio.ensure_future(collector.play_all(missing, RolloutSettings(collection.horizon, collection.temperature), keep))
    watching = asyncio.ensure_future(watch())
    try:
        await asyncio.wait((playing, watching), return_when=asyncio.FIRST_COMPLETED)
        for task in (playing, watching):
            if task.done():
                task.result()
    finally:
        for task in (playing, watching):
            task.cancel()
        await asyncio.gather(playing, watching, return_exceptions=True)
        writer.close()
