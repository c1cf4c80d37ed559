"""Environment servers and an agent for one or several collections by the same policy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from configs.collection import Collection, Source
from configs.evaluation_grid import EvaluationGrid
from configs.infrastructure import InfraSettings, urls_of
from configs.placement import OWN_FRACTION
from environments.handshake import check_same, task_indices, task_tags, verify_servers
from environments.protocol import WorldInfo
from flows.progress import EpisodeBar, say
from flows.recorded_weights import has_same_weights, record_weights
from tasks.agents.agent import Agent
from tasks.agents.agent_factory import open_agent
from tasks.agents.token_agent import TokenAgent
from tasks.provision.environment_servers import environment_replicas
from tasks.provision.replica_set import Replicas
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import (
    DifferentCollectionError,
    MissingEpisodesError,
    ResumableTrajectoryWriter,
)
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.task_order import evaluation_plans


class CollectionSession:
    """Holds the resources of collections in a `with` block. Opens the agent when needed."""

    def __init__(self, collection: Collection, infrastructure: InfraSettings) -> None:
        """
        Args:
            collection: The first collection. Others may differ in tasks, samples, horizon,
                temperature and seed.
            infrastructure: Where it runs.
        """
        self._first, self._infrastructure = collection, infrastructure
        self._stack = ExitStack()
        self._servers: Replicas | None = None
        self._agent: Agent | None = None

    def __enter__(self) -> Self:
        infrastructure, environment = self._infrastructure, self._first.environment
        elsewhere = urls_of(infrastructure, environment.name)
        if elsewhere:
            say("Connecting to the servers of AGENTGYM_ENVIRONMENT_URLS")
        else:
            self._servers = self._stack.enter_context(
                environment_replicas(
                    environment.name,
                    infrastructure.environment_servers,
                    rules=environment.rules,
                    infrastructure=infrastructure,
                )
            )
        self._urls = self._servers.urls if self._servers else elsewhere
        return self

    def __exit__(self, *fault: Any) -> None:
        self._stack.__exit__(*fault)

    def collect(self, collection: Collection, folder: Path, name: str = "") -> Tally:
        """Play the episodes that are missing in the folder.

        Args:
            collection: Policy, world, tasks and settings.
            folder: Where the parquet parts go.
            name: Name of the collection in the progress, if there are several.

        Raises:
            CollectionBusyError: Another process is collecting into the folder.
            DifferentCollectionError: The folder holds another collection, or the model was trained
                again.
            WrongWorldError: The servers host another world than the collection names or was started
                on.
        """
        writer = ResumableTrajectoryWriter(folder, identity(collection), collection.samples)
        try:
            check_same_weights(folder, collection.source)
            world, tasks = asyncio.run(ask(self._urls, collection))
            check_same(folder / "world", world.identity, "collection")
            requests = evaluation_plans(
                tasks[: collection.n_tasks], collection.samples, collection.seed
            )
            missing = sum(not writer.has(request.group, request.member) for request in requests)
            tally = Tally(len(requests), len(requests) - missing, name)
            if not missing:
                return tally
            agent = self._opened(collection, world)

            def check() -> None:
                writer.save()
                if self._servers:
                    self._servers.check()

            with tally:
                collect_to_disk(
                    collection,
                    requests,
                    agent,
                    self._urls,
                    writer,
                    identity=world.identity,
                    success_score=world.success_score,
                    finished=tally.add,
                    check=check,
                )
            if isinstance(agent, TokenAgent):
                tally.cached = agent.engine.cached_tokens / max(1, agent.engine.prompt_tokens)
            return tally
        finally:
            writer.close()

    def tags(self, collection: Collection) -> dict[int, str]:
        """Return the tag of each task, e.g. "depth 2", or an empty dict without tags."""
        return asyncio.run(task_tags(self._urls, collection.tasks))

    def _opened(self, collection: Collection, world: WorldInfo) -> Agent:
        if self._agent is None:
            self._agent = self._stack.enter_context(
                open_agent(
                    collection,
                    world,
                    gpu_memory_fraction=self._infrastructure.engine_memory_fraction or OWN_FRACTION,
                    cpu_cache_gb=self._infrastructure.engine_cpu_cache_gb,
                )
            )
        return self._agent


class Tally:
    """Counts collected episodes and shows the progress."""

    def __init__(self, episodes: int, before: int, name: str) -> None:
        """
        Args:
            episodes: Total number of episodes.
            before: Number of episodes already on disk.
            name: Name of the collection in the progress, or "".
        """
        self.before = before
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.tokens = 0
        self.cached: float | None = None
        self.reasons: dict[str, int] = {}
        self._began = time.perf_counter()
        self._bar = EpisodeBar(episodes, before, name)

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode."""
        self.outcomes[trajectory.outcome] += 1
        if trajectory.outcome is Outcome.FAILED:
            self.reasons[trajectory.reason] = self.reasons.get(trajectory.reason, 0) + 1
        self.tokens += sum(len(turn.tokens) for turn in trajectory.turns)
        figures = [f"{self.outcomes[Outcome.SUCCESS]} successes"]
        if self.tokens:  # scripted policies and endpoints give none
            speed = self.tokens / max(1e-9, time.perf_counter() - self._began)
            figures.append(f"{speed:.0f} tokens/s")
        if self.failed:
            figures.append(f"{self.failed} missing")
        self._bar.finished(", ".join(figures))

    def summary(self) -> str:
        """Return a one-line summary of counts.

        It gives no success rate, because this call may have played only a part of the collection.
        """
        played = sum(self.outcomes.values())
        if not played:
            return f"all {self.before} episodes were already recorded"
        line = f"{played} episodes ({self.before} recorded before), {self.outcomes[Outcome.SUCCESS]} successes, {self.tokens} policy tokens"
        if self.cached is not None:
            line += f", {self.cached:.0%} of prompt tokens from the prefix cache"
        if self.failed:
            return f"INCOMPLETE: {self.failed} of {self.before + played} episodes are missing. Most frequent cause: {self.reason}. {line}"
        return line

    @property
    def failed(self) -> int:
        """Number of episodes broken by infrastructure."""
        return self.outcomes[Outcome.FAILED]

    @property
    def reason(self) -> str:
        """The most frequent reason of broken episodes, or "" if there are none."""
        return max(self.reasons, key=lambda each: self.reasons[each], default="")

    def check_complete(self, folder: Path) -> None:
        """
        Raises:
            MissingEpisodesError: Infrastructure failures broke episodes.
        """
        if self.failed:
            raise MissingEpisodesError(
                f"{self.failed} episodes are missing in {folder}. Most frequent cause: "
                f"{self.reason}. Run the same command again to play the missing episodes.",
                self.failed,
            )


def model_of(source: Source) -> str | None:
    """Return the model of a policy that this machine or a vLLM server loads, None for others."""
    return source.model if source.kind in ("model", "vllm") else None


def check_same_weights(folder: Path, source: Source) -> None:
    """Record the digest of a model's weights in a new collection, or check it.

    Raises:
        DifferentCollectionError: The collection has episodes of other weights.
    """
    if not has_same_weights(folder, model_of(source)):
        raise DifferentCollectionError(
            f"{folder} holds episodes of other weights: those of {source.model} have changed. "
            "Delete the folder, or choose another one.",
            ("source.model",),
        )
    if not any(folder.glob("*.parquet")):  # nobody knows what played an old one
        record_weights(folder, model_of(source))


async def ask(urls: tuple[str, ...], collection: Collection) -> tuple[WorldInfo, list[int]]:
    """Return the world's description and the task indices of a collection."""
    world = await verify_servers(urls, collection.environment)
    return world, await task_indices(urls, collection.environment, collection.tasks, "tasks")


def identity(played: Collection | EvaluationGrid) -> dict[str, Any]:
    """Return the fields that identify a collection: all but addresses, deadlines, concurrency."""
    plain = played.model_dump(mode="json")
    plain["rollout"] = {
        name: plain["rollout"][name] for name in ("turn_tokens", "trajectory_tokens")
    }
    if plain["source"]["kind"] == "vllm":
        del plain["source"]["urls"]
    return plain


def folder_name(played: Collection | EvaluationGrid) -> str:
    """Return the folder name of a collection or an evaluation."""
    return f"{played.environment.name.replace(':', '.')}-{played.source.kind}-{digest(played)}"


def digest(played: Collection | EvaluationGrid) -> str:
    """Return 8 hex digits of the fields of `identity`."""
    return hashlib.sha256(json.dumps(identity(played), sort_keys=True).encode()).hexdigest()[:8]
