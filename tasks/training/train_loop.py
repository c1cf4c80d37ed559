"""One training step of every method, in the order in which it happens:

plan -> collect -> advantages -> loss -> optimiser -> weights to the engine -> record
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from configs.experiment import Experiment
from tasks.rollout.collector import Batch
from tasks.rollout.trajectory import Trajectory
from tasks.tracking.step_metrics_file import Steps
from tasks.training.step_metrics import device_metrics, rollout_metrics


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training step plays.

    Attributes:
        step: The training step, from 0.
        horizon: Its turn limit.
        batches: This process's episodes of this step and, after it, of steps that may be played ahead; empty where nothing is played.
    """

    step: int
    horizon: int
    batches: list[Batch]


@dataclass(slots=True)
class Collected:
    """What a training step learns from.

    Attributes:
        mine: This process's trajectories, in order.
        learned: Everybody's, in the main process.
        played: Everybody's that were played for this step, in the main process; also what dynamic sampling discarded.
        seconds: Wall time of playing.
        metrics: More to be said of it.
    """

    mine: list[Trajectory]
    learned: list[Trajectory] = field(default_factory=list)
    played: list[Trajectory] = field(default_factory=list)
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


class BatchSource(Protocol):
    """Where trajectories come from: the present policy (`RolloutBatches`), or records and explorations (`OfflineBatches`)."""

    def plan(self, step: int, history: Steps) -> Plan:
        """Which episodes a training step (from 0) plays; a pure function of the recipe, the step and the metrics before it."""
        ...

    def collect(self, plan: Plan) -> Collected:
        """Plays them, and returns what the step learns from. An engine in this process may then be asleep."""
        ...

    def load_engine(self, step: int) -> dict[str, float]:
        """Gives the engine the weights after `step` training steps, where the next step needs them; returns what to report of it."""
        ...


class TrainLoop:
    """Trains one step at a time. Every process runs the same steps on its share of the trajectories."""

    def __init__(self, experiment: Experiment, trainer: Any, source: BatchSource) -> None:
        """
        Args:
            experiment: The recipe.
            trainer: A `BaseTrainer`, prepared: policy, loss, optimiser.
            source: Where its trajectories come from.
        """
        self._experiment, self._trainer, self._source = experiment, trainer, source

    def train_step(self, step: int, history: Steps) -> dict[str, float]:
        """Trains one step (from 0); returns its metrics. `history` holds those of the steps before it."""
        trainer, source, algorithm = self._trainer, self._source, self._experiment.algorithm

        plan = source.plan(step, history)
        asked = time.time()
        collected = source.collect(plan)

        learning, began = time.time(), time.perf_counter()
        mini_batches = trainer.mini_batches_of(collected.mine, step)  # advantages

        for mini_batch in mini_batches * algorithm.epochs:
            for number, micro_batch in enumerate(mini_batch, 1):
                trainer.add_gradient(micro_batch, number, of=len(mini_batch))  # loss
            trainer.optimiser_step()
        seconds = time.perf_counter() - began

        learned = time.time()
        loaded = source.load_engine(step + 1)  # weights to the engine

        trainer.record(step + 1, {"collect": (asked, learning), "update": (learning, learned), "sync": (learned, time.time())})
        tokens = sum(len(t.prompt) + len(t.completion) for t in collected.learned)
        return {
            **trainer.update_metrics(),
            **rollout_metrics(collected.played, plan.horizon, collected.seconds, step, algorithm.compares_groups),
            **collected.metrics,
            **loaded,
            "update/seconds": seconds,
            "update/tokens_per_second": tokens / seconds,
            **device_metrics(),
        }
