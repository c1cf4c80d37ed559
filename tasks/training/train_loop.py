"""The training step, shared by every method, in the order in which it runs.

plan -> collect -> advantages -> loss -> optimiser -> weights to the engine -> record
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from configs.experiment import Experiment
from tasks.rollout.collector import Batch
from tasks.rollout.trajectory import Trajectory
from tasks.tracking.step_metrics_file import Steps
from tasks.training.out_of_sync import mark_failed
from tasks.training.rank_watch import Heartbeats
from tasks.training.step_metrics import device_metrics, rollout_metrics

if TYPE_CHECKING:
    from tasks.training.base_trainer import BaseTrainer


@dataclass(frozen=True, slots=True)
class Plan:
    """The episodes of a training step.

    Attributes:
        step: The training step, from 0.
        horizon: The turn limit of the step.
        batches: Episodes of the step, followed by those of later steps that may run ahead. With
            `rollout.stream` each group in flight is a batch. `RolloutBatches` plans this rank's
            episodes, `OfflineBatches` those of all ranks. Empty if the step collects no episodes.
        due: Number of batches, from the first, that the step waits for.
        count: Number of batches that the step uses, if it is more than `due`: those that finish
            first.
    """

    step: int
    horizon: int
    batches: list[Batch]
    due: int = 1
    count: int = 1


@dataclass(slots=True)
class Collected:
    """The trajectories of a training step.

    Attributes:
        local: This rank's trajectories, in order.
        train_trajectories: The train trajectories of all ranks.
        all_trajectories: The trajectories collected for this step on all ranks, including those
            discarded by dynamic sampling.
        seconds: Wall time of the collection.
        metrics: Additional metrics of the collection.
    """

    local: list[Trajectory]
    train_trajectories: list[Trajectory] = field(default_factory=list)
    all_trajectories: list[Trajectory] = field(default_factory=list)
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


def with_failed(collected: Collected, episodes: Collection[tuple[int, int]]) -> Collected:
    """Return a collection with episodes marked as failed, given by group and member."""
    return replace(
        collected,
        local=mark_failed(collected.local, episodes),
        train_trajectories=mark_failed(collected.train_trajectories, episodes),
        all_trajectories=mark_failed(collected.all_trajectories, episodes),
    )


class BatchSource(Protocol):
    """The source of trajectories.

    `RolloutBatches` samples them from the current policy. `OfflineBatches` reads a data set that is
    recorded, or explored by an earlier policy.
    """

    def plan(self, step: int, history: Steps) -> Plan:
        """Return the episodes of a training step (from 0).

        The plan is a pure function of the recipe, the step, and the metrics and results of earlier
        steps, which every checkpoint contains.
        """
        ...

    def collect(self, plan: Plan) -> Collected:
        """Run the planned episodes and return the train trajectories.

        An engine in this process may be asleep when the method returns.
        """
        ...

    def fail(
        self, plan: Plan, collected: Collected, episodes: Collection[tuple[int, int]]
    ) -> Collected:
        """Return the collection with episodes marked as failed, given by group and member.

        Raises:
            EpisodesLeftOutError: Too many episodes are left out now.
        """
        ...

    def load_engine(self, step: int) -> dict[str, float]:
        """Load the weights after `step` training steps into the engine if the next step needs them.

        Returns the metrics of the load.
        """
        ...


class TrainLoop:
    """Train one step at a time. Every rank runs the same steps on its share of the trajectories."""

    def __init__(
        self,
        experiment: Experiment,
        trainer: BaseTrainer,
        source: BatchSource,
        heartbeats: Heartbeats,
        operations_per_token: float,
    ) -> None:
        """
        Args:
            trainer: The policy, the loss and the optimiser.
            source: The source of the trajectories.
            heartbeats: Limits the time of each part of the update.
            operations_per_token: Floating-point operations of a forward and backward pass per token
                of the batch, divided by the number of ranks. Recomputation does not count.
        """
        self._experiment, self._trainer, self._source = experiment, trainer, source
        self._heartbeats = heartbeats
        trainer.beat = heartbeats.beat
        self._operations_per_token = operations_per_token

    def train_step(self, step: int, history: Steps) -> dict[str, float]:
        """Train one step (from 0) and return its metrics.

        `history` holds the metrics of the earlier steps.
        """
        trainer, source, algorithm = self._trainer, self._source, self._experiment.algorithm

        plan = source.plan(step, history)
        started = time.time()
        collected = source.collect(plan)

        learning, began = time.time(), time.perf_counter()
        with self._heartbeats.part(trainer.outside_seconds(collected.train_trajectories)):
            mini_batches = trainer.mini_batches_of(collected.local, step)  # advantages
        if trainer.out_of_sync:
            collected = source.fail(plan, collected, trainer.out_of_sync)

        for mini_batch in mini_batches * algorithm.epochs:
            for number, micro_batch in enumerate(mini_batch, 1):
                with self._heartbeats.part():
                    trainer.add_gradient(micro_batch, number, of=len(mini_batch))  # loss
            with self._heartbeats.part():
                trainer.optimiser_step()
        seconds = time.perf_counter() - began

        updated = time.time()
        loaded = source.load_engine(step + 1)  # weights to the engine

        trainer.record(
            step + 1,
            {
                "collect": (started, learning),
                "update": (learning, updated),
                "sync": (updated, time.time()),
            },
        )
        tokens = sum(
            len(row.prompt) + len(row.completion)
            for t in collected.train_trajectories
            for row in t.rows
        )
        return {
            **trainer.update_metrics(),
            **rollout_metrics(
                collected.all_trajectories,
                plan.horizon,
                collected.seconds,
                step,
                algorithm.compares_groups,
            ),
            **collected.metrics,
            **loaded,
            "update/seconds": seconds,
            "update/tokens_per_second": tokens / seconds,
            **device_metrics(self._operations_per_token * algorithm.epochs * tokens / seconds),
        }
