"""Trajectories of any policy, as parquet: the source for imitation, preference learning and evaluation.

    python -m flows.collect ENVIRONMENT (--model NAME | --vllm URL,... | --openai URL | --oracle) [options]

The same command continues a collection that was cut off: what is on disk is not played again.
"""

from __future__ import annotations

if __name__ == "__main__":
    import os

    from flows.collect_arguments import collection_arguments
    from flows.command import LocalRecords

    COLLECTION, FOLDER = collection_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # an engine on a CPU steps small matrices
    RECORDS = LocalRecords()

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from configs.collection import Collection
from configs.infrastructure import infra_settings, urls_of
from configs.task_selection import selection_name
from environments.door import check_same, enter, task_indices
from environments.protocol import WorldInfo
from flows.killed_flow_runs import note_flow_run
from flows.progress import EpisodeBar
from flows.run_names import named_by
from tasks.agents.agent_factory import open_agent
from tasks.agents.token_agent import TokenAgent
from tasks.provision.environment_servers import environment_replicas
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.task_order import evaluation_plans


def described(parameters: Mapping[str, Any]) -> str:
    """The name of the flow run of a collection, e.g. "textcraft wood-test by step-000040"."""
    collection: Collection = parameters["collection"]
    source = collection.source
    return f"{collection.environment.name} {selection_name(collection.tasks)} by {Path(source.model).name if source.model else source.kind}"


@flow(name="collect", on_running=[note_flow_run], flow_run_name=named_by(described))
def collect(collection: Collection, folder: Path | None = None) -> str:
    """Collects trajectories.

    Args:
        collection: Who plays what.
        folder: Where the parts go; by default a folder below runs/collected that is named after the collection.

    Returns:
        The folder.
    """
    infrastructure = infra_settings()
    settings = identity(collection)
    folder = folder or infrastructure.runs / "collected" / name_of(collection, settings)
    writer = ResumableTrajectoryWriter(folder, settings, collection.samples)
    with ExitStack() as stack:
        stack.callback(writer.close)
        servers = None
        elsewhere = urls_of(infrastructure, collection.environment.name)
        if not elsewhere:
            servers = stack.enter_context(
                environment_replicas(
                    collection.environment.name,
                    infrastructure.environment_servers,
                    rules=collection.environment.rules,
                    backend="container" if infrastructure.environment_backend == "container" else "local",
                    image=infrastructure.environment_image,
                )
            )
        urls = servers.urls if servers else elsewhere
        world, tasks = asyncio.run(ask(urls, collection))
        check_same(folder / "world", world.identity, "collection")
        requests = evaluation_plans(tasks[: collection.n_tasks], collection.samples, collection.seed)
        missing = sum(not writer.has(request.group, request.member) for request in requests)
        tally = Tally(len(requests), len(requests) - missing)
        if missing:
            agent = stack.enter_context(
                open_agent(
                    collection,
                    world,
                    gpu_memory_fraction=infrastructure.engine_memory_fraction,
                    cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
                )
            )

            def check() -> None:
                writer.save()
                if servers:
                    servers.check()

            with tally:
                collect_to_disk(
                    collection,
                    requests,
                    agent,
                    urls,
                    writer,
                    identity=world.identity if world.version else "",
                    success_score=world.success_score,
                    finished=tally.add,
                    check=check,
                )
            if isinstance(agent, TokenAgent):
                tally.cached = agent.engine.cached_tokens / max(1, agent.engine.prompt_tokens)
    create_markdown_artifact(f"`{folder}`: {tally.summary()}", key="collection", description=str(folder))
    get_run_logger().info("%s: %s", folder, tally.summary())
    print(f"{folder}: {tally.summary()}")
    return str(folder)


class Tally:
    """Counts what is collected, and shows it."""

    def __init__(self, episodes: int, before: int) -> None:
        """`episodes` in all, of which `before` are on disk already."""
        self.before = before
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.turns = self.tokens = 0
        self.cached: float | None = None
        self.reasons: dict[str, int] = {}
        self._began = time.perf_counter()
        self._bar = EpisodeBar(episodes, before)

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, trajectory: Trajectory) -> None:
        """Counts an episode."""
        self.outcomes[trajectory.outcome] += 1
        if trajectory.outcome is Outcome.FAILED:
            self.reasons[trajectory.reason] = self.reasons.get(trajectory.reason, 0) + 1
        self.turns += len(trajectory.turns)
        self.tokens += sum(len(turn.tokens) for turn in trajectory.turns)
        failed = self.outcomes[Outcome.FAILED]
        note = f", {failed} failed" if failed else ""
        self._bar.finished(f"success {self._success():.0%}, {self._tokens_per_second():.0f} tokens/s{note}")

    def summary(self) -> str:
        """One line for a person."""
        played = sum(self.outcomes.values())
        if not played:
            return f"all {self.before} episodes were there already"
        failed = self.outcomes[Outcome.FAILED]
        line = (
            f"{played} episodes ({self.before} before), success {self._success():.1%}, {self.turns / played:.1f} turns, "
            f"{self.tokens} tokens of the policy"
        )
        if self.cached is not None:
            line += f", {self.cached:.0%} of the prompts' tokens from the prefix cache"
        if failed:
            reason = max(self.reasons, key=lambda each: self.reasons[each])
            line += f"; {failed} FAILED, most often: {reason}. The same command plays their groups again"
        return line

    def _success(self) -> float:
        scored = sum(self.outcomes.values()) - self.outcomes[Outcome.FAILED]
        return self.outcomes[Outcome.SUCCESS] / max(1, scored)

    def _tokens_per_second(self) -> float:
        return self.tokens / max(1e-9, time.perf_counter() - self._began)


async def ask(urls: tuple[str, ...], collection: Collection) -> tuple[WorldInfo, list[int]]:
    """What is played, and the tasks."""
    world = await enter(urls, collection.environment)
    return world, await task_indices(urls, collection.environment, collection.tasks, "tasks")


def identity(collection: Collection) -> dict[str, Any]:
    """What makes a collection this one: everything but addresses, deadlines and how many episodes are in flight."""
    plain = collection.model_dump(mode="json")
    plain["rollout"] = {name: plain["rollout"][name] for name in ("turn_tokens", "trajectory_tokens")}
    if plain["source"]["kind"] == "vllm":
        del plain["source"]["urls"]
    return plain


def name_of(collection: Collection, settings: dict[str, Any]) -> str:
    """Name of a collection's folder."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return f"{collection.environment.name.replace(':', '.')}-{collection.source.kind}-{digest}"


if __name__ == "__main__":
    from flows.command import run_to_the_end

    run_to_the_end(RECORDS, lambda: collect(COLLECTION, FOLDER), goes_on="from here")
