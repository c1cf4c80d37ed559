"""Whether training has collapsed: a verdict over the metrics of all steps so far. Pure functions, nothing to save.

What a collapse looks like in multi-turn training (arXiv 2509.08755, figure 1; arXiv 2504.20073, section 4.2): the reward falls and does not
come back, while the policy becomes certain of one message or of none, repeats itself, stops writing actions that can be read, leaves the
policy it began as, or is moved by ever larger gradients. One of these signs alone is no collapse: entropy falls in good runs, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from configs.experiment import Experiment

Metrics = Mapping[str, float]

HEALTHY, STRAINED, COLLAPSED = 0.0, 1.0, 2.0

WINDOW = 5
"""Steps in a mean: one batch says little."""
LEAST_FALL = 0.1
"""A reward that falls by less is noise."""
ENTROPY_FLOOR, ENTROPY_CEILING = 0.1, 2.0
"""Entropy as a share of its start."""
SHARE_RISE = 0.3
"""Rise of a share of bad turns."""
KL_CEILING = 0.5
"""Nats per token away from the starting policy."""
GRADIENT_FACTOR = 10.0
"""Gradient norm as a multiple of its median so far."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be thought of a run.

    Attributes:
        level: HEALTHY (0), STRAINED (1: there are signs) or COLLAPSED (2: the reward fell, too, or a number is no number).
        signs: What was seen, in words.
    """

    level: float
    signs: tuple[str, ...]


class TrainingCollapsedError(RuntimeError):
    """A run collapsed and its recipe says that it is to end then.

    Attributes:
        last_good: The last step (counted from 1) at which it was healthy; 0 if it never was.
    """

    def __init__(self, note: str, last_good: int) -> None:
        super().__init__(note)
        self.last_good = last_good


def verdict(history: Sequence[Metrics]) -> Verdict:
    """Judges a run by its metrics, one mapping for each step in order.

    It reads rollout/reward, rollout/entropy, rollout/repeated_share, rollout/malformed_share, rollout/refused_share, update/kl,
    update/gradient_norm and update/loss. A missing metric gives no sign. Means are over WINDOW steps, so the first bad verdict comes
    after two windows, except for numbers that are not finite.
    """
    last = history[-1] if history else {}
    broken = [name for name in ("update/loss", "update/gradient_norm") if not math.isfinite(last.get(name, 0.0))]
    if broken:
        return Verdict(COLLAPSED, tuple(f"{name} is not a finite number" for name in broken))
    if len(history) < 2 * WINDOW:
        return Verdict(HEALTHY, ())
    signs = [*_entropy(history), *_shares(history), *_gradient(history)]
    if (kl := _now(history, "update/kl")) is not None and kl > KL_CEILING:
        signs.append(f"KL from the starting policy is {kl:.2f} nats per token")
    fall = _fall(history)
    if fall:
        best, now = fall
        lost = now < 0.2 * best
        return Verdict(COLLAPSED if signs or lost else STRAINED, (f"reward fell from {best:.2f} to {now:.2f}", *signs))
    return Verdict(STRAINED if signs else HEALTHY, tuple(signs))


def verdict_at(history: Mapping[int, Metrics], step: int) -> Verdict:
    """The verdict after a step (counted from 1), given the metrics of it and of those before."""
    return verdict([history[earlier] for earlier in sorted(history) if earlier <= step])


def last_good_step(history: Mapping[int, Metrics]) -> int:
    """The last step (counted from 1) at which the run was healthy; 0 if it never was."""
    return max((step for step in history if verdict_at(history, step).level == HEALTHY), default=0)


def checkpoints_kept(experiment: Experiment) -> int:
    """How many of the newest checkpoints must stay: a collapse shows steps after the last good one, to which a run may be rolled back."""
    if experiment.algorithm.on_collapse != "roll_back":
        return experiment.keep_checkpoints
    return max(experiment.keep_checkpoints, -(-2 * WINDOW // experiment.checkpoint_every) + 1)


def collapse_note(history: Mapping[int, Metrics]) -> str:
    """A sentence for the summary of a run: when it collapsed and by which signs; empty if it did not."""
    for step in sorted(history):
        found = verdict_at(history, step)
        if found.level == COLLAPSED:
            before = {earlier: metrics for earlier, metrics in history.items() if earlier < step}
            return f"Training collapsed at step {step}: {'; '.join(found.signs)}. It was last healthy at step {last_good_step(before)}."
    return ""


def _mean(history: Sequence[Metrics], name: str) -> float | None:
    values = [metrics[name] for metrics in history if name in metrics]
    return fmean(values) if values else None


def _start(history: Sequence[Metrics], name: str) -> float | None:
    return _mean(history[:WINDOW], name)


def _now(history: Sequence[Metrics], name: str) -> float | None:
    return _mean(history[-WINDOW:], name)


def _fall(history: Sequence[Metrics]) -> tuple[float, float] | None:
    """Best and present mean reward, if more than half of the best, and more than noise, is gone."""
    rewards = [metrics["rollout/reward"] for metrics in history if "rollout/reward" in metrics]
    if len(rewards) < 2 * WINDOW:
        return None
    best = max(fmean(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1))
    now = fmean(rewards[-WINDOW:])
    return (best, now) if best - now > max(LEAST_FALL, best / 2) else None


def _entropy(history: Sequence[Metrics]) -> list[str]:
    start, now = _start(history, "rollout/entropy"), _now(history, "rollout/entropy")
    if start is None or now is None or start <= 0 or ENTROPY_FLOOR * start <= now <= ENTROPY_CEILING * start:
        return []
    return [f"entropy went from {start:.3f} to {now:.3f} nats per token"]


def _shares(history: Sequence[Metrics]) -> list[str]:
    signs = []
    for name, words in (
        ("rollout/repeated_share", "turns that repeat the one before"),
        ("rollout/malformed_share", "malformed turns"),
        ("rollout/refused_share", "turns that the world refused"),
    ):
        start, now = _start(history, name), _now(history, name)
        if start is not None and now is not None and now > start + SHARE_RISE:
            signs.append(f"the share of {words} went from {start:.2f} to {now:.2f}")
    return signs


def _gradient(history: Sequence[Metrics]) -> list[str]:
    norms = [metrics["update/gradient_norm"] for metrics in history if "update/gradient_norm" in metrics]
    if len(norms) < 2 * WINDOW:
        return []
    now, usual = fmean(norms[-WINDOW:]), median(norms)
    return [f"the gradient norm is {now:.3g}, usually {usual:.3g}"] if now > GRADIENT_FACTOR * usual > 0 else []
