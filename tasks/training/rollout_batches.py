"""The batches of the RL methods: episodes that the current policy runs for each step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from configs.policy_gradient import PolicyGradient
from tasks.curriculum.horizon import horizon_at
from tasks.rollout.collector import Batch
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.step_metrics_file import Steps
from tasks.training.base_trainer import BaseTrainer
from tasks.training.dynamic_sampling import discarded_cost, resampled
from tasks.training.left_out import check_left_out
from tasks.training.messages import TrainerJob
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.task_order import plans_of_step
from tasks.training.task_results import results_of, sampling_weights
from tasks.training.train_loop import Collected, Plan


class RolloutBatches:
    """A `BatchSource` of whole groups, split across ranks.

    Rank 0 stores the trajectories of all ranks.
    """

    def __init__(self, job: TrainerJob, worker: RolloutWorker, trainer: BaseTrainer) -> None:
        """
        Args:
            job: The training job.
            worker: Runs this rank's episodes.
            trainer: Supplies the weights for the engine.
        """
        assert isinstance(job.experiment.algorithm, PolicyGradient)
        self._job, self._experiment, self._algorithm = job, job.experiment, job.experiment.algorithm
        self._worker, self._trainer = worker, trainer

    def plan(self, step: int, history: Steps) -> Plan:
        """Plan the groups of the step and of later steps that may run ahead.

        Implements `BatchSource.plan`.
        """
        last = min(step + self._experiment.rollout.max_off_policy_steps, self._algorithm.steps - 1)
        batches = [self._batch(each, history) for each in range(step, last + 1)]
        return Plan(step, batches[0].settings.horizon, batches)

    def collect(self, plan: Plan) -> Collected:
        """Run this rank's groups and, if the recipe asks for it, resample zero-variance groups.

        Implements `BatchSource.collect`.

        Raises:
            EpisodesLeftOutError: Too many episodes are left out.
        """
        self._worker.load_weights(plan.step, self._trainer)  # at the first step
        began = time.perf_counter()
        played = self._worker.collect(plan.batches)
        settings = plan.batches[0].settings

        def play(requests: Sequence[RolloutRequest]) -> list[Trajectory]:
            return self._worker.collect(
                [Batch(f"resampled for step {plan.step}", requests, settings)]
            )

        local, discarded = resampled(
            played,
            self._experiment,
            self._algorithm,
            self._job.train_tasks,
            plan.step,
            play,
            self._weights(plan.step),
        )
        kept, all_discarded = self._worker.gather(local), self._worker.gather(discarded)
        seconds = time.perf_counter() - began  # until the slowest rank is done
        everything = sorted([*kept, *all_discarded], key=lambda t: (t.group, t.member))
        if self._worker.processes.is_main_process:
            write_trajectories(
                self._job.folder / "rollouts" / f"step-{plan.step + 1:06d}.parquet", everything
            )
        limit = self._experiment.rollout.max_left_out_share
        missing = check_left_out(kept, self._algorithm.compares_groups, limit, plan.step)
        if self._algorithm.task_order == "by_success":
            self._trainer.task_results[plan.step + 1] = results_of(
                everything, self._algorithm.compares_groups
            )
        cost = discarded_cost(all_discarded) if self._algorithm.max_resample_rounds else {}
        self._worker.sleep()
        return Collected(local, kept, everything, seconds, cost | missing.metrics())

    def load_engine(self, step: int) -> dict[str, float]:
        """Load the trainer's weights into the engine. Implements `BatchSource.load_engine`."""
        self._worker.load_weights(step, self._trainer)
        return self._worker.metrics()

    def _batch(self, step: int, history: Steps) -> Batch:
        """Return this rank's episodes of a training step."""
        rollout, processes = self._experiment.rollout, self._worker.processes
        plans = plans_of_step(
            self._job.train_tasks,
            step,
            rollout.tasks_per_step,
            rollout.group_size,
            self._experiment.seeds.training,
            self._weights(step),
        )
        local = [
            plan
            for plan in plans
            if plan.group % processes.num_processes == processes.process_index
        ]
        return Batch(
            f"step {step}",
            local,
            RolloutSettings(horizon_at(self._experiment, step, history), rollout.temperature),
        )

    def _weights(self, step: int) -> dict[int, float] | None:
        """Return the sampling weights of the tasks; None if their order is shuffled.

        Results of the last max_off_policy_steps steps are ignored. So a batch that begins early has
        the same tasks as later, when its step is planned.
        """
        if self._algorithm.task_order == "shuffled":
            return None
        return sampling_weights(
            self._job.train_tasks,
            self._trainer.task_results,
            step,
            self._experiment.rollout.max_off_policy_steps,
        )
