"""The batches of an RL method that trains on recorded episodes instead of playing."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.policy_gradient import PolicyGradient
from tasks.curriculum.horizon import horizon_at
from tasks.files import read_json
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.tracking.step_metrics_file import Steps
from tasks.training.base_trainer import BaseTrainer
from tasks.training.context_parallel import rank_of_group
from tasks.training.left_out import check_left_out
from tasks.training.messages import TrainerJob
from tasks.training.offline_selection import (
    NothingToImitateError,
    batch_of_step,
    has_tokens,
    read_recorded,
)
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.train_loop import Collected, Plan, with_failed


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """Recorded episodes in groups.

    Attributes:
        groups: Groups of episodes of the same task.
        unused: Number of episodes in no group: failed or greedy ones, episodes without the policy's
            tokens or of later weights, and the only recorded episode of a task.
    """

    groups: list[list[Trajectory]]
    unused: int


class RecordedGroups:
    """A `BatchSource` of recorded episodes. The same step yields the same batch.

    The recorded tokens have version 0: the weights that the run starts from. So the first step is
    on-policy, and the trainer compares the recorded log-probabilities with its own. Later steps are
    off-policy. Their importance correction uses the recorded log-probabilities.
    """

    def __init__(self, job: TrainerJob, worker: RolloutWorker, trainer: BaseTrainer) -> None:
        """The arguments are those of `RolloutBatches`.

        Raises:
            NothingToImitateError: There is no group, the episodes were collected greedily, or they
                are divided although the algorithm needs undivided ones.
        """
        algorithm = job.experiment.algorithm
        assert isinstance(algorithm, PolicyGradient)
        assert algorithm.trajectories is not None
        self._experiment, self._worker = job.experiment, worker
        self._together = job.context_parallel
        smallest = 2 if algorithm.compares_groups else 1
        path = Path(algorithm.trajectories)
        if is_greedy_collection(path):
            raise NothingToImitateError(
                f"algorithm.trajectories: {path} was collected at temperature 0, but RL needs "
                "sampled episodes. Collect at --temperature "
                f"{job.experiment.rollout.temperature:g}, or set algorithm.name to sft."
            )
        recorded = read_recorded(path, job.recorded_files, algorithm.whole_episodes_only())
        self._episodes = recorded_episodes(recorded, job.experiment.rollout.group_size, smallest)
        if not self._episodes.groups:
            raise NothingToImitateError(
                f"algorithm.trajectories: {path} has {len(recorded)} trajectories, but no task "
                f"with {smallest} usable episodes. Record more episodes of the same task at "
                f"temperature {job.experiment.rollout.temperature:g}. Failed and greedy ones are "
                "not used."
            )

    def plan(self, step: int, history: Steps) -> Plan:
        """Plan no episodes. Implements `BatchSource.plan`."""
        return Plan(step, horizon_at(self._experiment, step, history), [])

    def collect(self, plan: Plan) -> Collected:
        """Return the groups of a step. Implements `BatchSource.collect`."""
        began = time.perf_counter()
        rollout = self._experiment.rollout
        processes = self._worker.processes
        chosen = batch_of_step(
            self._episodes.groups,
            plan.step,
            rollout.tasks_per_step,
            self._experiment.seeds.training,
        )
        batch = [
            replace(t, group=group, member=member)
            for group, members in enumerate(chosen)
            for member, t in enumerate(members)
        ]
        local = [
            t
            for t in batch
            if rank_of_group(t.group, processes.num_processes, self._together)
            == processes.process_index
        ]
        self._worker.sleep()  # an evaluation woke it
        metrics = {"rollout/recorded_unused": float(self._episodes.unused)}
        return Collected(local, batch, batch, time.perf_counter() - began, metrics)

    def fail(
        self, plan: Plan, collected: Collected, episodes: Collection[tuple[int, int]]
    ) -> Collected:
        """Mark episodes of a step as failed. Implements `BatchSource.fail`."""
        algorithm, rollout = self._experiment.algorithm, self._experiment.rollout
        failed = with_failed(collected, episodes)
        check_left_out(
            failed.train_trajectories,
            algorithm.compares_groups,
            rollout.max_left_out_share,
            plan.step,
        )
        return failed

    def load_engine(self, step: int) -> dict[str, float]:
        """Return the engine's metrics only: evaluations load the weights when they start."""
        return self._worker.metrics()


def recorded_episodes(
    trajectories: Sequence[Trajectory], size: int, smallest: int
) -> RecordedEpisodes:
    """Split recorded episodes into groups of the same task.

    Args:
        trajectories: Recorded trajectories, in order.
        size: Most episodes of a group.
        smallest: Fewest episodes of a group.
    """
    tasks: dict[tuple[str, int], list[Trajectory]] = {}
    for t in filter(_is_usable, trajectories):
        tasks.setdefault((t.environment, t.task), []).append(t)
    groups = [
        members[i : i + size] for members in tasks.values() for i in range(0, len(members), size)
    ]
    kept = [group for group in groups if len(group) >= smallest]
    return RecordedEpisodes(kept, len(trajectories) - sum(map(len, kept)))


def is_greedy_collection(path: Path) -> bool:
    """Whether `agentgym collect` played the episodes of a file or folder at temperature 0."""
    settings = (path if path.is_dir() else path.parent) / "settings.json"
    return read_json(settings).get("temperature") == 0  # files of another source have no settings


def _is_usable(trajectory: Trajectory) -> bool:
    """Whether the policy that the run starts from sampled the trajectory without a fault.

    The endpoint records the log-probabilities of greedy messages as NaN.
    """
    is_first_policy = all(turn.policy_version == 0 for turn in trajectory.turns)
    is_sampled = not any(map(math.isnan, trajectory.log_probabilities))
    return (
        trajectory.outcome is not Outcome.FAILED
        and has_tokens(trajectory)
        and is_first_policy
        and is_sampled
    )
