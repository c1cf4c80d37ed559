"""Episodes of a batch that are left out of the update because of an infrastructure fault.

The fault hit the episode or another member of its group. Such episodes are not a random sample:
deadlines and lost answers hit long episodes more often. The share is therefore logged at every
step, and training stops if it is too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.groups import learnable_groups

WARNING_SHARE = 0.01
"""Share of left-out episodes above which a step logs a warning."""


class EpisodesLeftOutError(RuntimeError):
    """More episodes of a step are left out than the recipe allows."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Summary of the episodes that are left out of a batch.

    Attributes:
        episodes: Number of left-out episodes.
        share: Their share of all episodes, 0 to 1.
        turns: Their mean length so far, in turns; 0 if there is none.
        reason: The most frequent fault; empty if no episode failed.
    """

    episodes: int
    share: float
    turns: float
    reason: str

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step."""
        return {"rollout/left_out_share": self.share, "rollout/left_out_turns": self.turns}


def left_out(trajectories: Sequence[Trajectory], complete_groups: bool) -> LeftOut:
    """Summarise the left-out episodes of a batch. The arguments are those of `learnable_groups`."""
    missing = learnable_groups(trajectories, complete_groups).left_out_episodes
    reasons = [t.reason for t in missing if t.outcome is Outcome.FAILED]
    return LeftOut(
        len(missing),
        len(missing) / len(trajectories) if trajectories else 0.0,
        sum(len(t.turns) for t in missing) / len(missing) if missing else 0.0,
        max(reasons, key=reasons.count, default=""),
    )


def check_left_out(
    trajectories: Sequence[Trajectory], complete_groups: bool, limit: float, step: int
) -> LeftOut:
    """Summarise the left-out episodes of a batch and check their share.

    Args:
        trajectories: All trajectories of the batch.
        complete_groups: Whether a failed member drops its whole group, as in `learnable_groups`.
        limit: `rollout.max_left_out_share`.
        step: The training step, from 0.

    Raises:
        EpisodesLeftOutError: The share is above the limit.
    """
    found = left_out(trajectories, complete_groups)
    if found.share > limit:
        raise EpisodesLeftOutError(
            f"step {step + 1}: {found.episodes} of {len(trajectories)} episodes are left out "
            f"because of infrastructure faults. The share is {found.share:.3f}, but "
            f"rollout.max_left_out_share is {limit:g}. Their mean length is {found.turns:.1f} "
            f"turns. The most frequent fault is: {found.reason}. Fix the fault and run the same "
            "command again to continue from the last checkpoint."
        )
    return found


def left_out_warning(step: int, metrics: Mapping[str, float]) -> str:
    """Return a warning if a step leaves out more than `WARNING_SHARE` of its episodes, else ""."""
    share = metrics.get("rollout/left_out_share", 0.0)
    if share <= WARNING_SHARE:
        return ""
    return (
        f"WARNING: step {step} leaves out {100 * share:.1f} % of its episodes because of "
        f"infrastructure faults. Their mean length is {metrics['rollout/left_out_turns']:.1f} "
        f"turns, and that of the other episodes is {metrics.get('rollout/turns', 0.0):.1f} turns."
    )
