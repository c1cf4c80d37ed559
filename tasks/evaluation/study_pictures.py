"""The pictures of a study: success over environment turns, differences, and training metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tasks.evaluation.pictures import axis_of_shares, distances, new_figure, save
from tasks.evaluation.statistics import Estimate, mean
from tasks.evaluation.study_report import MECHANISM, WORDS
from tasks.evaluation.study_results import Measure, Runs, level


def draw_study(
    path: Path,
    runs: Runs,
    differences: Mapping[str, Mapping[str, Any]],
    measure: Measure = "success",
) -> None:
    """Draw success or mean reward over steps and turns, and the comparisons, as a PNG.

    Each marker is a measurement that all runs of the arm have. On the axis of turns it is placed at
    the runs' mean number of turns up to then.

    Args:
        path: File to write.
        runs: Maps each arm to its runs.
        differences: Maps the name of each comparison to its difference, low and high, in [-1, 1],
            as `family_section` returns them. May be empty.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _panels(3 if differences else 2)
    for place, (arm, of_arm) in enumerate(runs.items()):
        steps = sorted(
            set.intersection(*({result.step for result in run.results} for run in of_arm))
        )
        at_step = [
            mean(level(next(r for r in run.results if r.step == step), measure) for run in of_arm)
            for step in steps
        ]
        turns = [fmean(run.spent("turns", step) for run in of_arm) for step in steps]
        for panel, at in ((axes[0], steps), (axes[1], turns)):
            draw_measurements(panel, at, at_step, arm, offset=4 * (place - (len(runs) - 1) / 2))
    for panel, label in ((axes[0], "training step"), (axes[1], "environment turns")):
        panel.set_xlabel(label)
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        panel.grid(axis="y", alpha=0.2)
        if measure == "success":
            axis_of_shares(panel)
    axes[0].set_ylabel(f"{WORDS[measure]}, mean over seeds and 95 % interval")
    if any(runs.values()):
        axes[0].legend(frameon=False)
    if differences:
        _forest(axes[2], differences, measure)
    save(figure, path)


def draw_mechanism(path: Path, runs: Runs) -> None:
    """Draw the training metrics step by step, averaged over seeds, as a PNG.

    Without any of them no file is written, and an earlier one is deleted.
    """
    metrics = [
        each
        for each in MECHANISM
        if any(run.metric(each) for of_arm in runs.values() for run in of_arm)
    ]
    if not metrics:
        path.unlink(missing_ok=True)
        return
    figure, axes = _panels(len(metrics))
    for panel, metric in zip(axes, metrics, strict=True):
        for arm, of_arm in runs.items():
            by_step: dict[int, list[float]] = {}
            for run in of_arm:
                for step, value in run.metric(metric).items():
                    by_step.setdefault(step, []).append(value)
            steps = sorted(by_step)
            values = [fmean(by_step[step]) for step in steps]
            panel.plot(steps, values, label=arm, linewidth=1.3)
        panel.set_title(MECHANISM[metric], fontsize=10)
        panel.set_xlabel("training step")
        panel.grid(axis="y", alpha=0.2)
    axes[0].legend(frameon=False)
    save(figure, path)


def _panels(number: int) -> tuple[Any, Sequence[Any]]:
    figure = new_figure(5.2 * number, 4.4, dpi=130)
    return figure, list(np.ravel(figure.subplots(1, number)))


def draw_measurements(
    panel: Any, at: Sequence[float], estimates: Sequence[Estimate], label: str, offset: float = 0.0
) -> None:
    """Draw measurements as markers with their intervals, joined by a line from three on.

    Two points do not show a trend.

    Args:
        at: Horizontal position of each measurement.
        label: Name in the legend.
        offset: Horizontal shift of unjoined measurements, in points, to separate arms at the same
            position.
    """
    from matplotlib.transforms import offset_copy

    values = [e.value for e in estimates]
    below, above = distances(estimates)
    low, high = np.subtract(values, below), np.add(values, above)
    joined = len(at) > 2
    errors = None if joined else [below, above]
    if joined:
        moved = panel.transData
    else:
        moved = offset_copy(panel.transData, panel.figure, x=offset, units="points")
    style = {
        "marker": "o",
        "markersize": 4,
        "linestyle": "-" if joined else "none",
        "capsize": 3,
        "transform": moved,
    }
    line = panel.errorbar(at, values, yerr=errors, label=label, **style)
    # shifted markers do not count in the limits
    panel.update_datalim([*zip(at, low, strict=True), *zip(at, high, strict=True)])
    panel.autoscale_view()
    if joined:
        panel.fill_between(at, low, high, color=line.lines[0].get_color(), alpha=0.14, linewidth=0)


def _forest(panel: Any, differences: Mapping[str, Mapping[str, Any]], measure: Measure) -> None:
    unit = 100 if measure == "success" else 1
    for place, found in enumerate(differences.values()):
        if found["difference"] is None:
            continue
        value, low, high = (
            unit * (found[name] if found[name] is not None else found["difference"])
            for name in ("difference", "low", "high")
        )
        panel.errorbar(
            [value],
            [place],
            xerr=[[value - low], [high - value]],
            marker="o",
            capsize=4,
            color="#1f2937",
        )
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(differences)), list(differences))
    panel.set_ylim(len(differences) - 0.5, -0.5)
    panel.set_xlabel(
        f"difference at the endpoint{', points' if measure == 'success' else ''} (95 % interval)"
    )
