"""Methods side by side: how much each raises held-out success, how soon and at which cost, over several seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.report import change
from tasks.evaluation.statistics import Estimate, mean, rise

NOTE = (
    "Success on held-out tasks before and after training, mean over seeds. Rises are in points, with 95 % intervals: over seeds "
    "(Student's t) and over tasks. Against {first}: how many points higher it ended, paired by seed. Steps: training steps until a "
    "measurement first was {gain:.0f} points above the start, mean over the runs that got there. Time: rollouts, updates and weight sync, "
    "without start-up and measurements."
)


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One run of a method.

    Attributes:
        seed: Of its training and its evaluations.
        results: Its evaluations, the first before training, the last after it.
        steps: Training step to its metrics.
        collapsed: Whether training collapsed.
    """

    seed: int
    results: Sequence[EvaluationResult]
    steps: Mapping[int, Mapping[str, float]]
    collapsed: bool

    def seconds(self) -> float:
        """Wall time of rollouts, updates and weight sync."""
        return sum(m.get(name, 0.0) for m in self.steps.values() for name in ("rollout/seconds", "update/seconds", "sync/seconds"))

    def steps_to(self, gain: float) -> int | None:
        """The step of the first measurement whose success is `gain` (in [0, 1]) above the start's; None if there is none."""
        start = self.results[0].success.value
        return next((r.step for r in self.results[1:] if r.success.value >= start + gain), None)


Runs = Mapping[str, Sequence[MethodRun]]
"""Method to its runs, one for each seed."""


def methods_table(runs: Runs, gain: float = 0.1) -> str:
    """One row for each method, in Markdown; each is compared with the first."""
    first = next(iter(runs))
    lines = [
        f"| method | seeds | start | end | rise, over seeds | rise, over tasks | against {first} | steps | reached | time | collapsed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method, of_method in runs.items():
        risen = rise([r.results[0].tallies for r in of_method], [r.results[-1].tallies for r in of_method])
        reached = [step for r in of_method if (step := r.steps_to(gain)) is not None]
        cells = [
            method,
            str(len(of_method)),
            *(f"{100 * fmean(r.results[i].success.value for r in of_method):.1f} %" for i in (0, -1)),
            change(risen.by_seed),
            change(risen.by_task),
            "" if method == first else _against(runs[first], of_method),
            _number(mean(reached)),
            f"{len(reached)}/{len(of_method)}",
            f"{_number(mean(r.seconds() / 60 for r in of_method))} min",
            str(sum(r.collapsed for r in of_method)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    critics = [critic_note(method, of_method) for method, of_method in runs.items() if _explained(of_method[0])]
    return "\n".join([*lines, "", NOTE.format(gain=100 * gain, first=first), "", *critics])


def _against(first: Sequence[MethodRun], other: Sequence[MethodRun]) -> str:
    """How many points more of the held-out tasks `other` solves after training, over the seeds that both have."""
    ends = {run.seed: run.results[-1].tallies for run in first}
    pairs = [(ends[run.seed], run.results[-1].tallies) for run in other if run.seed in ends]
    return change(rise([a for a, _ in pairs], [b for _, b in pairs]).by_seed) if pairs else "-"


def critic_note(method: str, runs: Sequence[MethodRun]) -> str:
    """What the critics of a method's runs learnt. Their loss alone does not say: it grows with the variance of the returns."""
    explained: list[tuple[float, float]] = []
    losses: list[tuple[float, float]] = []
    for run in runs:
        of_run, third = _explained(run), max(1, len(run.steps) // 3)
        explained.append((of_run[0], fmean(of_run[-third:])))
        loss = [run.steps[step]["critic/loss"] for step in sorted(run.steps)]
        losses.append((fmean(loss[:third]), fmean(loss[-third:])))
    (first, last), (before, after) = zip(*explained, strict=True), zip(*losses, strict=True)
    return (
        f"The critic of {method} explained {_number(mean(first), 2)} of the returns' variance in the first step and "
        f"{_number(mean(last), 2)} over the last third of the steps (mean over seeds, 95 % intervals): its loss fell to "
        f"{1 - fmean(last):.2f} of that of a constant. As it is, variance included, it went from {fmean(before):.3f} in the first third to "
        f"{fmean(after):.3f} in the last.\n"
    )


def _explained(run: MethodRun) -> list[float]:
    """Explained variance in each step; empty where there is no critic."""
    name = "critic/explained_variance"
    return [run.steps[step][name] for step in sorted(run.steps) if name in run.steps[step]]


def draw_methods(path: Path, runs: Runs) -> None:
    """Draw held-out success over training (mean over seeds and its 95 % interval) and the rises, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (curves, rises) = pyplot.subplots(1, 2, figsize=(13, 5), dpi=120, layout="constrained")
    for number, (method, of_method) in enumerate(runs.items()):
        points = [
            (results[0].step, mean(r.success.value for r in results)) for results in zip(*(r.results for r in of_method), strict=False)
        ]
        at, estimates = [step for step, _ in points], [estimate for _, estimate in points]
        (line,) = curves.plot(at, [e.value for e in estimates], marker="o", label=method)
        curves.fill_between(at, *([_bound(e, i) for e in estimates] for i in (0, 1)), color=line.get_color(), alpha=0.12, linewidth=0)
        by_seed = rise([r.results[0].tallies for r in of_method], [r.results[-1].tallies for r in of_method]).by_seed
        spread = [[100 * (by_seed.value - _bound(by_seed, 0))], [100 * (_bound(by_seed, 1) - by_seed.value)]]
        rises.errorbar([100 * by_seed.value], [number], xerr=spread, marker="o", capsize=4, color=line.get_color())
    curves.set_xlabel("training step")
    curves.locator_params(axis="x", integer=True)
    curves.set_ylabel("success on held-out tasks")
    curves.legend(frameon=False, ncols=2)
    curves.grid(axis="y", alpha=0.2)
    rises.axvline(0, color="grey", linewidth=0.8)
    rises.set_yticks(range(len(runs)), list(runs))
    rises.invert_yaxis()
    rises.set_xlabel("rise of held-out success, points (95 % interval over seeds)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def _bound(estimate: Estimate, side: int) -> float:
    """The lower (0) or upper (1) bound, or the value where the data carry no interval."""
    bound = (estimate.low, estimate.high)[side]
    return estimate.value if math.isnan(bound) else bound


def _number(estimate: Estimate, digits: int = 1) -> str:
    value, low, high = (f"{number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high))
    if math.isnan(estimate.value):
        return "-"
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"
