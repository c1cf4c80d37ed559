"""The batches of the methods by reinforcement: episodes of the present policy, played for each training step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tasks.curriculum.horizon import horizon_at
from tasks.rollout.collector import Batch
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.step_metrics_file import Steps
from tasks.training.algorithms.policy_gradient import PolicyGradient
from tasks.training.base_trainer import BaseTrainer
from tasks.training.dynamic_sampling import discarded_cost, resampled
from tasks.training.left_out import check_left_out
from tasks.training.messages import TrainerJob
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.task_order import plans_of_step
from tasks.training.train_loop import Collected, Plan


class RolloutBatches:
    """A `BatchSource` of whole groups, shared out over the processes. The main process stores everybody's."""

    def __init__(self, job: TrainerJob, worker: RolloutWorker, trainer: BaseTrainer) -> None:
        """
        Args:
            job: What is trained.
            worker: Plays this process's episodes.
            trainer: Whose weights it plays with.
        """
        assert isinstance(job.experiment.algorithm, PolicyGradient)
        self._job, self._experiment, self._algorithm = job, job.experiment, job.experiment.algorithm
        self._worker, self._trainer = worker, trainer

    def plan(self, step: int, history: Steps) -> Plan:
        """The tasks of the step, each for a group of episodes, and of the steps that may be played ahead; see `BatchSource.plan`."""
        last = min(step + self._experiment.rollout.max_off_policy_steps, self._algorithm.steps - 1)
        batches = [self._batch(each, history) for each in range(step, last + 1)]
        return Plan(step, batches[0].settings.horizon, batches)

    def collect(self, plan: Plan) -> Collected:
        """Play this process's groups; zero-variance ones give way to others' where the recipe says so. See `BatchSource.collect`.

        Raises:
            EpisodesLeftOutError: Too many episodes are left out.
        """
        self._worker.load_weights(plan.step, self._trainer)  # at the start of the run; later `load_engine` has done it
        began = time.perf_counter()
        played = self._worker.collect(plan.batches)
        settings = plan.batches[0].settings

        def play(requests: Sequence[RolloutRequest]) -> list[Trajectory]:
            return self._worker.collect([Batch(f"resampled for step {plan.step}", requests, settings)])

        mine, discarded = resampled(played, self._experiment, self._algorithm, self._job.train_tasks, plan.step, play)
        seconds = time.perf_counter() - began
        kept, thrown_away = self._worker.gathered(mine), self._worker.gathered(discarded)
        everybodys = sorted([*kept, *thrown_away], key=lambda t: (t.group, t.member))
        if self._worker.processes.is_main_process:
            write_trajectories(self._job.folder / "rollouts" / f"step-{plan.step + 1:06d}.parquet", everybodys)
        limit = self._experiment.rollout.max_left_out_share
        missing = check_left_out(kept, self._algorithm.compares_groups, limit, plan.step)  # of what could be learned from
        cost = discarded_cost(thrown_away) if self._algorithm.max_resample_rounds else {}
        self._worker.sleep()
        return Collected(mine, everybodys, everybodys, seconds, cost | missing.metrics())

    def load_engine(self, step: int) -> dict[str, float]:
        """See `BatchSource.load_engine`."""
        self._worker.load_weights(step, self._trainer)
        return self._worker.metrics()

    def _batch(self, step: int, history: Steps) -> Batch:
        """The episodes of a training step that are this process's."""
        rollout, processes = self._experiment.rollout, self._worker.processes
        plans = plans_of_step(self._job.train_tasks, step, rollout.tasks_per_step, rollout.group_size, self._experiment.seeds.training)
        mine = [plan for plan in plans if plan.group % processes.num_processes == processes.process_index]
        return Batch(f"step {step}", mine, RolloutSettings(horizon_at(self._experiment, step, history), rollout.temperature))
