"""Detect a training collapse from the metrics of all steps so far. Pure functions without state.

In a collapse of multi-turn training the reward falls and does not recover (arXiv 2509.08755, figure
1; arXiv 2504.20073, section 4.2). At the same time at least one of these signs appears:

- The policy's entropy collapses or explodes.
- The policy repeats itself.
- The policy stops writing parsable actions.
- The policy drifts far from the starting policy.
- The gradients grow.

One of these signs alone is not a collapse. For example, entropy also falls in good runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from configs.experiment import Experiment

Metrics = Mapping[str, float]

HEALTHY, STRAINED, COLLAPSED = 0.0, 1.0, 2.0

WINDOW = 5
"""Number of steps in a mean, since a single batch is noisy."""
LEAST_FALL = 0.1
"""Smallest fall of the reward that is not treated as noise."""
ENTROPY_FLOOR, ENTROPY_CEILING = 0.1, 2.0
"""Normal range of the entropy, as a multiple of its initial value."""
SHARE_RISE = 0.3
"""Rise of a share of bad turns that counts as a sign."""
KL_CEILING = 0.5
"""Largest normal KL divergence from the starting policy, in nats per token."""
GRADIENT_FACTOR = 10.0
"""Largest normal gradient norm, as a multiple of its median so far."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The health of a run.

    Attributes:
        level: HEALTHY (0), STRAINED (1: there are signs) or COLLAPSED (2: the reward fell as well,
            or a metric is not finite).
        signs: Descriptions of the signs.
    """

    level: float
    signs: tuple[str, ...]


class TrainingCollapsedError(RuntimeError):
    """A run collapsed, and its recipe asks to stop in this case.

    Attributes:
        last_good: The last healthy step (counted from 1), or 0 if there is none.
    """

    def __init__(self, note: str, last_good: int) -> None:
        super().__init__(note)
        self.last_good = last_good


def verdict(history: Sequence[Metrics]) -> Verdict:
    """Judge the health of a run by its metrics, given as one mapping per step, in order.

    The metrics are rollout/reward, rollout/entropy, rollout/repeated_share,
    rollout/malformed_share, rollout/refused_share, update/kl, update/gradient_norm, update/loss
    and critic/loss.
    A missing metric gives no sign. Means are over WINDOW steps, so the first bad verdict needs two
    windows. Metrics that are not finite are reported at once.
    """
    last = history[-1] if history else {}
    broken = [
        name
        for name in ("update/loss", "update/gradient_norm", "critic/loss")
        if not math.isfinite(last.get(name, 0.0))
    ]
    if broken:
        return Verdict(COLLAPSED, tuple(f"{name} is not a finite number" for name in broken))
    if len(history) < 2 * WINDOW:
        return Verdict(HEALTHY, ())
    signs = [*_entropy(history), *_shares(history), *_gradient(history)]
    if (kl := _now(history, "update/kl")) is not None and kl > KL_CEILING:
        signs.append(f"KL divergence from the starting policy is {kl:.2f} nats per token")
    fall = _fall(history)
    if fall:
        best, now = fall
        lost = best > 0 and now < 0.2 * best
        return Verdict(
            COLLAPSED if signs or lost else STRAINED,
            (f"reward fell from {best:.2f} to {now:.2f}", *signs),
        )
    return Verdict(STRAINED if signs else HEALTHY, tuple(signs))


def verdict_at(history: Mapping[int, Metrics], step: int) -> Verdict:
    """Return the verdict after a step (counted from 1), from the metrics up to this step."""
    return verdict([history[earlier] for earlier in sorted(history) if earlier <= step])


def last_good_step(history: Mapping[int, Metrics]) -> int:
    """Return the last healthy step (counted from 1), or 0 if there is none."""
    return max((step for step in history if verdict_at(history, step).level == HEALTHY), default=0)


def checkpoints_kept(experiment: Experiment) -> int:
    """Return how many of the newest checkpoints to keep.

    A collapse is detected several steps after the last healthy step. A rollback needs a checkpoint
    from before the collapse.
    """
    if experiment.algorithm.on_collapse != "roll_back":
        return experiment.keep_checkpoints
    return max(experiment.keep_checkpoints, -(-2 * WINDOW // experiment.checkpoint_every) + 1)


def rollback_step(
    experiment: Experiment, history: Mapping[int, Metrics], steps: Collection[int]
) -> set[int]:
    """Return the step, of those with a checkpoint, that a rollback would restore now.

    Empty if there is none, or if the recipe does not roll back.
    """
    if experiment.algorithm.on_collapse != "roll_back":
        return set()
    last_good = last_good_step(history)
    return set(sorted(step for step in steps if step <= last_good)[-1:])


def collapse_note(history: Mapping[int, Metrics]) -> str:
    """Describe when a run collapsed and by which signs; empty if it did not collapse."""
    for step in sorted(history):
        found = verdict_at(history, step)
        if found.level == COLLAPSED:
            before = {earlier: metrics for earlier, metrics in history.items() if earlier < step}
            return f"Training collapsed at step {step}: {'; '.join(found.signs)}. The last healthy step was {last_good_step(before)}."
    return ""


def _mean(history: Sequence[Metrics], name: str) -> float | None:
    values = [metrics[name] for metrics in history if name in metrics]
    return fmean(values) if values else None


def _start(history: Sequence[Metrics], name: str) -> float | None:
    return _mean(history[:WINDOW], name)


def _now(history: Sequence[Metrics], name: str) -> float | None:
    return _mean(history[-WINDOW:], name)


def _fall(history: Sequence[Metrics]) -> tuple[float, float] | None:
    """Return the best and the current mean reward if the reward fell, else None.

    A fall is a loss of more than half of the best reward's size and of more than LEAST_FALL.
    """
    rewards = [metrics["rollout/reward"] for metrics in history if "rollout/reward" in metrics]
    if len(rewards) < 2 * WINDOW:
        return None
    best = max(fmean(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1))
    now = fmean(rewards[-WINDOW:])
    return (best, now) if best - now > max(LEAST_FALL, abs(best) / 2) else None


def _entropy(history: Sequence[Metrics]) -> list[str]:
    start, now = _start(history, "rollout/entropy"), _now(history, "rollout/entropy")
    if (
        start is None
        or now is None
        or start <= 0
        or ENTROPY_FLOOR * start <= now <= ENTROPY_CEILING * start
    ):
        return []
    return [f"entropy changed from {start:.3f} to {now:.3f} nats per token"]


def _shares(history: Sequence[Metrics]) -> list[str]:
    signs = []
    for name, words in (
        ("rollout/repeated_share", "repeated turns"),
        ("rollout/malformed_share", "malformed turns"),
        ("rollout/refused_share", "refused turns"),
    ):
        start, now = _start(history, name), _now(history, name)
        if start is not None and now is not None and now > start + SHARE_RISE:
            signs.append(f"the share of {words} rose from {start:.2f} to {now:.2f}")
    return signs


def _gradient(history: Sequence[Metrics]) -> list[str]:
    norms = [
        metrics["update/gradient_norm"] for metrics in history if "update/gradient_norm" in metrics
    ]
    if len(norms) < 2 * WINDOW:
        return []
    now, usual = fmean(norms[-WINDOW:]), median(norms)
    if now > GRADIENT_FACTOR * usual > 0:
        return [f"the gradient norm is {now:.3g}, and its median is {usual:.3g}"]
    return []
