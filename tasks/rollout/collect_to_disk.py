"""Collects the episodes that are not on disk yet, and writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from configs.collection import Collection
from tasks.agents.agent import Agent
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory import Trajectory


def collect_to_disk(
    collection: Collection,
    requests: Sequence[RolloutRequest],
    agent: Agent,
    urls: Sequence[str],
    writer: ResumableTrajectoryWriter,
    *,
    identity: str = "",
    success_score: float = 1.0,
    finished: Callable[[Trajectory], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Plays the episodes that the writer does not have yet. What is finished is written even when it ends in an exception.

    Args:
        collection: Settings and budgets.
        requests: All episodes of the collection.
        agent: Who plays.
        urls: Environment servers.
        writer: Where trajectories go.
        identity: `WorldInfo.identity` of the world that the servers must host; empty: any.
        success_score: The score from which an episode is a success.
        finished: Called with each trajectory.
        check: Called about twice a second; raises when the environment servers are gone for good.
    """
    missing = [request for request in requests if not writer.has(request.group, request.member)]
    batch = Batch("collection", missing, RolloutSettings(collection.horizon, collection.temperature))
    try:
        with Collector(
            collection.environment.name,
            urls,
            agent,
            collection.rollout,
            dialect=collection.environment.dialect,
            identity=identity,
            success_score=success_score,
        ) as collector:
            for trajectory in collector.stream(batch, check):
                writer.add(trajectory)
                finished(trajectory)
    finally:
        writer.close()
