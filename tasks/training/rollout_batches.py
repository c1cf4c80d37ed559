"""The batches of the RL methods: episodes that the current policy runs for each step."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from configs.policy_gradient import PolicyGradient
from tasks.curriculum.horizon import horizon_at
from tasks.rollout.collector import Batch
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.step_metrics_file import Steps
from tasks.training.base_trainer import BaseTrainer
from tasks.training.context_parallel import rank_of_group
from tasks.training.dynamic_sampling import discarded_cost, resampled
from tasks.training.left_out import check_left_out
from tasks.training.messages import TrainerJob
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.streaming import due_groups, groups_in_flight, renumbered
from tasks.training.task_order import plans_of_step
from tasks.training.task_results import results_of, sampling_weights
from tasks.training.train_loop import Collected, Plan, with_failed


class RolloutBatches:
    """A `BatchSource` of groups, split across ranks.

    A rank samples whole groups, so that its engine computes their prompt once. With more ranks than
    groups, the episodes of a group are sampled on several ranks, and the group then goes to one
    rank, which computes its advantages. Rank 0 stores the trajectories of all ranks.
    """

    def __init__(self, job: TrainerJob, worker: RolloutWorker, trainer: BaseTrainer) -> None:
        """
        Args:
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
        if self._experiment.rollout.stream:
            return self._streamed(step, history)
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
        played = self._worker.collect(f"step {plan.step}", plan.batches, plan.due, plan.count)
        if self._splits_groups:
            played = [t for t in self._worker.gather(played) if self._owns(t.group)]

        def play(requests: Sequence[RolloutRequest]) -> list[Trajectory]:
            name = f"resampled for step {plan.step}"
            return self._worker.collect(name, [Batch(name, requests, plan.batches[0].settings)])

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
        if self._experiment.rollout.stream:
            trained = list(dict.fromkeys(t.group for t in kept))
            in_flight = self._in_flight(plan.step)
            self._trainer.waiting_groups = [n for n in in_flight if n not in trained]
            local, kept = renumbered(local, trained), renumbered(kept, trained)
        everything = sorted([*kept, *all_discarded], key=lambda t: (t.group, t.member))
        cost = discarded_cost(all_discarded) if self._algorithm.max_resample_rounds else {}
        collected = self._recorded(plan.step, Collected(local, kept, everything, seconds, cost))
        self._worker.sleep()
        return collected

    def fail(
        self, plan: Plan, collected: Collected, episodes: Collection[tuple[int, int]]
    ) -> Collected:
        """Mark episodes of a collection as failed. Implements `BatchSource.fail`."""
        return self._recorded(plan.step, with_failed(collected, episodes))

    def _recorded(self, step: int, collected: Collected) -> Collected:
        """Write a step's trajectories, and add what is left out to the metrics.

        Raises:
            EpisodesLeftOutError: The share of left-out episodes exceeds the recipe's limit.
        """
        everything, compares_groups = collected.all_trajectories, self._algorithm.compares_groups
        if self._worker.processes.is_main_process:
            file = self._job.folder / "rollouts" / f"step-{step + 1:06d}.parquet"
            write_trajectories(file, everything)
        limit = self._experiment.rollout.max_left_out_share
        missing = check_left_out(collected.train_trajectories, compares_groups, limit, step)
        if self._algorithm.task_order == "by_success":
            self._trainer.task_results[step + 1] = results_of(everything, compares_groups)
        return replace(collected, metrics=collected.metrics | missing.metrics())

    def load_engine(self, step: int) -> dict[str, float]:
        """Load the trainer's weights into the engine. Implements `BatchSource.load_engine`."""
        self._worker.load_weights(step, self._trainer)
        return self._worker.metrics()

    def _streamed(self, step: int, history: Steps) -> Plan:
        """Plan this rank's groups in flight, each as a batch. The oldest come first."""
        rollout, per_step = self._experiment.rollout, self._experiment.rollout.tasks_per_step
        in_flight, groups = self._in_flight(step), dict[int, list[RolloutRequest]]()
        planned = {
            each: self._batch(each, history)
            for each in sorted({number // per_step for number in in_flight} | {step})
        }
        for each, batch in planned.items():
            for request in batch.requests:
                if (number := each * per_step + request.group) in in_flight:
                    groups.setdefault(number, []).append(replace(request, group=number))
        batches = [
            Batch(f"group {number}", requests, planned[number // per_step].settings)
            for number, requests in groups.items()
        ]
        due = due_groups(
            list(groups), step, per_step, self._algorithm.steps, rollout.max_off_policy_steps
        )
        count = len({request.group for request in planned[step].requests})
        return Plan(step, planned[step].settings.horizon, batches, len(due), count)

    def _in_flight(self, step: int) -> list[int]:
        """Return the groups of all ranks that the step may train on, by number."""
        per_step = self._experiment.rollout.tasks_per_step
        return groups_in_flight(self._trainer.waiting_groups, step, per_step, self._algorithm.steps)

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
        if self._splits_groups:
            local = plans[processes.process_index :: processes.num_processes]
        else:
            local = [plan for plan in plans if self._owns(plan.group)]
        return Batch(
            f"step {step}",
            local,
            RolloutSettings(horizon_at(self._experiment, step, history), rollout.temperature),
        )

    @property
    def _splits_groups(self) -> bool:
        rollout = self._experiment.rollout
        return rollout.tasks_per_step < self._worker.processes.num_processes and not rollout.stream

    def _owns(self, group: int) -> bool:
        """Whether this rank computes the advantages of a group."""
        processes, together = self._worker.processes, self._job.context_parallel
        owner = rank_of_group(group, processes.num_processes, together)
        return bool(owner == processes.process_index)

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
