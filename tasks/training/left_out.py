"""Episodes of a batch that are not learned from because infrastructure broke them, or another member of their group.

They are not a random sample: a deadline or a lost answer ends long episodes more often. So their share is measured at every
step, and training stops where it is large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.groups import learnable_groups

WARNING_SHARE = 0.01
"""Share of the episodes above which a step is worth a warning."""


class EpisodesLeftOutError(RuntimeError):
    """More episodes of a step are left out than the recipe allows."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is left out of a batch.

    Attributes:
        episodes: Number of episodes that are left out.
        share: Their share of all episodes, 0 to 1.
        turns: Their mean length in turns, as far as they were played; 0 if none is left out.
        reason: What broke most of them; empty if none was broken.
    """

    episodes: int
    share: float
    turns: float
    reason: str

    def metrics(self) -> dict[str, float]:
        """The metrics of a step."""
        return {"rollout/left_out_share": self.share, "rollout/left_out_turns": self.turns}


def left_out(trajectories: Sequence[Trajectory], complete_groups: bool) -> LeftOut:
    """What is left out of a batch; see `learnable_groups` for the arguments."""
    missing = learnable_groups(trajectories, complete_groups).left_out_episodes
    reasons = [t.reason for t in missing if t.outcome is Outcome.FAILED]
    return LeftOut(
        len(missing),
        len(missing) / len(trajectories) if trajectories else 0.0,
        sum(len(t.turns) for t in missing) / len(missing) if missing else 0.0,
        max(reasons, key=reasons.count, default=""),
    )


def check_left_out(trajectories: Sequence[Trajectory], complete_groups: bool, limit: float, step: int) -> LeftOut:
    """What is left out of a batch; refuse the batch if that is too much.

    Args:
        trajectories: All of the batch.
        complete_groups: See `learnable_groups`.
        limit: `rollout.max_left_out_share`.
        step: The training step, from 0.

    Raises:
        EpisodesLeftOutError: The share is above the limit.
    """
    found = left_out(trajectories, complete_groups)
    if found.share > limit:
        raise EpisodesLeftOutError(
            f"step {step + 1}: {found.episodes} of {len(trajectories)} episodes are left out (mean length {found.turns:.1f} turns), a "
            f"share of {found.share:.3f}; rollout.max_left_out_share is {limit:g}. Most often: {found.reason}. Mend that, then run the "
            "same command: it continues from the last checkpoint."
        )
    return found


def left_out_warning(step: int, metrics: Mapping[str, float]) -> str:
    """A line about a step of which more than `WARNING_SHARE` is left out; empty otherwise."""
    share = metrics.get("rollout/left_out_share", 0.0)
    if share <= WARNING_SHARE:
        return ""
    return (
        f"WARNING: step {step} leaves out {100 * share:.1f} % of its episodes, which infrastructure broke. Mean length: "
        f"{metrics['rollout/left_out_turns']:.1f} turns left out, {metrics.get('rollout/turns', 0.0):.1f} turns learned from."
    )
