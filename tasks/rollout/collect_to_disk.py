"""Collection to disk: play the episodes that are not on disk yet and write them."""

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
    """Play the episodes that the writer does not hold yet.

    Finished episodes are written even when the collection ends with an exception.

    Args:
        collection: Settings and budgets.
        requests: All episodes of the collection.
        agent: The agent that plays.
        urls: URLs of the environment servers.
        writer: Receives the trajectories.
        identity: `WorldInfo.identity` of the world that the servers must host. Empty: any world.
        success_score: Lowest score that counts as a success.
        finished: Called with each trajectory.
        check: Called about twice a second. It raises if the environment servers are lost for good.
    """
    missing = [request for request in requests if not writer.has(request.group, request.member)]
    batch = Batch(
        "collection", missing, RolloutSettings(collection.horizon, collection.temperature)
    )
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
