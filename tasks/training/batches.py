"""What a training step learns from, where that is not simply what its plan plays: refilled groups, explored and recorded trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from configs.experiment import Experiment
from tasks.curriculum.horizon import horizon_at
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.groups import learnable_groups, zero_variance
from tasks.training.recorded import batch_of_step, preferences, read_recorded, successes
from tasks.training.task_order import exploration_plans, refill_plans

Play = Callable[[Sequence[RolloutRequest], RolloutSettings], list[Trajectory]]


def refilled(
    trajectories: Sequence[Trajectory], experiment: Experiment, tasks: Sequence[int], step: int, conditions: RolloutSettings, play: Play
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Dynamic sampling (arXiv 2503.14476, section 3.2): groups without spread give way to groups of other tasks.

    Args:
        trajectories: This process's, as played first.
        experiment: The recipe; `algorithm.refills` bounds how often this is done.
        tasks: Task indices to draw from.
        step: The training step (from 0).
        conditions: Those of the step.
        play: Plays episodes on this process.

    Returns:
        The batch, in which groups that still have no spread after the last refill stay, and what was discarded.
    """
    rollout, kept, discarded = experiment.rollout, list(trajectories), list[Trajectory]()
    for refill in range(1, experiment.algorithm.refills + 1):
        groups = learnable_groups(kept, experiment.algorithm.compares_groups).kept
        dull = {group[0].group for group in groups if zero_variance(group)}
        if not dull:
            break
        discarded += [t for t in kept if t.group in dull]
        plans = refill_plans(tasks, sorted(dull), step, refill, rollout.tasks_per_step, rollout.group_size, experiment.seeds.training)
        kept = [t for t in kept if t.group not in dull] + play(plans, conditions)
    return kept, discarded


def refill_cost(discarded: Sequence[Trajectory]) -> dict[str, float]:
    """What dynamic sampling threw away, for the metrics."""
    return {
        "rollout/discarded_episodes": float(len(discarded)),
        "rollout/discarded_tokens": float(sum(len(turn.tokens) for t in discarded for turn in t.turns)),
    }


class ImitationBatches:
    """The batches of sft, dpo and agentevol, all processes' together; the same step gives the same batch, also after a kill.

    Attributes:
        explored: What was played for the last batch; empty where nothing was.
    """

    def __init__(self, experiment: Experiment, tasks: Sequence[int], folder: Path, play: Callable[..., list[Trajectory]]) -> None:
        """
        Args:
            experiment: The recipe.
            tasks: Task indices to explore.
            folder: The run's folder; explorations are kept below it.
            play: play(step, plans, conditions, path) plays episodes with the weights of a step, shared out over the processes, stores
                all of them at `path` and returns them.
        """
        self._experiment, self._tasks, self._folder, self._play = experiment, tasks, folder, play
        self._pool: dict[int, list[Trajectory]] = {}
        self.explored: list[Trajectory] = []

    def batch(self, step: int) -> list[Trajectory]:
        """What a training step (from 0) imitates: successes; for dpo a success and a failure of the same task in turn.

        Raises:
            NothingToImitate: What was recorded or explored holds nothing good enough.
        """
        algorithm, rollout, seed = self._experiment.algorithm, self._experiment.rollout, self._experiment.seeds.training
        self.explored = []
        last = step // algorithm.offline.explore_every if algorithm.name == "agentevol" else 0
        pool = [t for exploration in range(last + 1) for t in self._exploration(exploration, step)]
        size = rollout.tasks_per_step * rollout.group_size
        if algorithm.name == "dpo":
            return [t for pair in batch_of_step(preferences(pool, seed), step, size // 2, seed) for t in pair]
        return batch_of_step(successes(pool), step, size, seed)

    def share(self, batch: Sequence[Trajectory], process: int, processes: int) -> list[Trajectory]:
        """A process's part of a batch; pairs stay together."""
        width = 2 if self._experiment.algorithm.name == "dpo" else 1
        return [t for i, t in enumerate(batch) if i // width % processes == process]

    def _exploration(self, exploration: int, step: int) -> list[Trajectory]:
        """The trajectories of an exploration, played with the weights of `step` unless that was done before."""
        if exploration not in self._pool:
            offline, rollout = self._experiment.algorithm.offline, self._experiment.rollout
            path = self._folder / "rollouts" / f"exploration-{exploration:04d}.parquet"
            if offline.trajectories is not None:
                self._pool[exploration] = read_recorded(Path(offline.trajectories))
            elif path.is_file():
                self._pool[exploration] = read_trajectories(path)
            else:
                seed, groups = self._experiment.seeds.training, offline.explore_groups
                plans = exploration_plans(self._tasks, exploration, groups, rollout.group_size, seed)
                conditions = RolloutSettings(horizon_at(self._experiment.curriculum, step), rollout.temperature)
                self.explored = self._pool[exploration] = self._play(step, plans, conditions, path)
        return self._pool[exploration]
