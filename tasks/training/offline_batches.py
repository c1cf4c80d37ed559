"""The batches of the imitation methods: trajectories that are recorded, or explored earlier."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from configs.imitation import Imitation
from tasks.curriculum.horizon import horizon_at
from tasks.rollout.collector import Batch
from tasks.rollout.episode import RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tasks.tracking.step_metrics_file import Steps
from tasks.training.algorithms.table import select
from tasks.training.base_trainer import BaseTrainer
from tasks.training.left_out import check_left_out
from tasks.training.messages import TrainerJob
from tasks.training.offline_selection import read_recorded
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.task_order import plans_of_step
from tasks.training.train_loop import Collected, Plan


class OfflineBatches:
    """A `BatchSource` of recorded or explored trajectories.

    The same step yields the same batch, also after a kill and resume.
    """

    def __init__(self, job: TrainerJob, worker: RolloutWorker, trainer: BaseTrainer) -> None:
        """The arguments are those of `RolloutBatches`."""
        assert isinstance(job.experiment.algorithm, Imitation)
        self._job, self._experiment, self._algorithm = job, job.experiment, job.experiment.algorithm
        self._worker, self._trainer = worker, trainer
        self._pool: dict[int, list[Trajectory]] = {}

    def plan(self, step: int, history: Steps) -> Plan:
        """Plan the exploration that is due, if any, for all ranks.

        Implements `BatchSource.plan`.
        """
        horizon = horizon_at(self._experiment, step, history)
        exploration = self._algorithm.explorations(step) - 1
        batches = []
        if (
            not self._is_recorded(exploration)
            and exploration not in self._pool
            and not self._path(exploration).is_file()
        ):
            seed = self._experiment.seeds.training
            groups = self._algorithm.explore_groups
            size = self._experiment.rollout.group_size
            requests = plans_of_step(
                self._job.train_tasks, exploration, groups, size, seed, purpose="explore"
            )
            settings = RolloutSettings(horizon, self._experiment.rollout.temperature)
            batches = [Batch(f"exploration {exploration}", requests, settings)]
        return Plan(step, horizon, batches)

    def collect(self, plan: Plan) -> Collected:
        """Return the successes or pairs that a step imitates. Implements `BatchSource.collect`.

        Raises:
            NothingToImitateError: No recorded or explored trajectory is good enough.
        """
        began, played = time.perf_counter(), list[Trajectory]()
        explorations = self._algorithm.explorations(plan.step)
        for batch in plan.batches:
            played = self._explore(plan.step, batch, self._path(explorations - 1))
            self._pool[explorations - 1] = played
        seconds = time.perf_counter() - began
        if not plan.batches and self._begins_exploration(plan.step):  # it was played before a kill
            played = self._found(explorations - 1)
            ends = [t.began + t.seconds for t in played]
            seconds = max(ends, default=0.0) - min((t.began for t in played), default=0.0)
        pool = [t for exploration in range(explorations) for t in self._found(exploration)]
        rollout, seed = self._experiment.rollout, self._experiment.seeds.training
        chosen = select(
            self._algorithm, pool, plan.step, rollout.tasks_per_step * rollout.group_size, seed
        )
        processes, unit = self._worker.processes, self._algorithm.unit
        self._worker.sleep()  # an exploration or an earlier evaluation woke it
        local = [
            t
            for i, t in enumerate(chosen)
            if i // unit % processes.num_processes == processes.process_index
        ]
        return Collected(local, chosen, played, seconds)

    def fail(
        self, plan: Plan, collected: Collected, episodes: Collection[tuple[int, int]]
    ) -> Collected:
        """Return the collection: imitated episodes are not compared with the current weights."""
        return collected

    def load_engine(self, step: int) -> dict[str, float]:
        """Return the engine's metrics only: explorations load the weights when they start."""
        return self._worker.metrics()

    def _explore(self, step: int, batch: Batch, path: Path) -> list[Trajectory]:
        """Run episodes with the weights of a step, split across ranks. Rank 0 stores them.

        Raises:
            EpisodesLeftOutError: Too many episodes are left out. Nothing is stored in this case,
                and the same command runs them again.
        """
        self._worker.load_weights(step, self._trainer)
        found = self._worker.collect_shared(batch.name, batch.requests, batch.settings)
        check_left_out(
            found,
            self._algorithm.compares_groups,
            self._experiment.rollout.max_left_out_share,
            step,
        )
        if self._worker.processes.is_main_process:
            write_trajectories(path, found)
        return found

    def _found(self, exploration: int) -> list[Trajectory]:
        if exploration not in self._pool:
            recorded = self._is_recorded(exploration)
            if recorded:
                path = Path(str(self._algorithm.trajectories))
                needs = self._algorithm.whole_episodes_only()
                found = read_recorded(path, self._job.recorded_files, needs)
            else:
                found = read_trajectories(self._path(exploration))
            self._pool[exploration] = found
        return self._pool[exploration]

    def _begins_exploration(self, step: int) -> bool:
        """Return whether a step (from 0) is the first of an exploration that is played."""
        exploration = self._algorithm.explorations(step) - 1
        first = step == 0 or self._algorithm.explorations(step - 1) == exploration
        return first and not self._is_recorded(exploration)

    def _is_recorded(self, exploration: int) -> bool:
        """Return whether recorded trajectories replace an exploration: only the first one."""
        return exploration == 0 and self._algorithm.trajectories is not None

    def _path(self, exploration: int) -> Path:
        return self._job.folder / "rollouts" / f"exploration-{exploration:04d}.parquet"
