"""The pictures of a study: success over environment turns with bands, the differences, and what happened in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tasks.evaluation.statistics import Estimate, mean
from tasks.evaluation.study_report import MECHANISM, WORDS
from tasks.evaluation.study_results import Measure, Runs, StudyRun, after, level

POINTS = 60
"""Of a curve over turns: the runs of an arm are measured after different numbers of turns, so each is read off its own line."""


def draw_study(path: Path, runs: Runs, differences: Mapping[str, Mapping[str, Any]], measure: Measure = "success") -> None:
    """Draws success, or the mean reward, over steps and over environment turns, and the comparisons with their intervals, as a PNG.

    Args:
        path: Where to write.
        runs: Arm to its runs.
        differences: Name of each comparison to its difference, low and high, in [-1, 1], as `family_section` gives them; may be empty.
        measure: What is drawn.
    """
    figure, axes = _figure(3 if differences else 2)
    for arm, of_arm in runs.items():
        steps = sorted(set.intersection(*({result.step for result in run.results} for run in of_arm)))
        at_step = [mean(level(next(r for r in run.results if r.step == step), measure) for run in of_arm) for step in steps]
        _band(axes[0], steps, at_step, arm)
        end = min(run.positions("turns")[-1] for run in of_arm)
        turns = list(np.linspace(0, end, POINTS)) if end > 0 else []
        _band(axes[1], turns, [mean(_after(run, budget, measure) for run in of_arm) for budget in turns], arm)
    for panel, label in ((axes[0], "training step"), (axes[1], "environment turns")):
        panel.set_xlabel(label)
        panel.set_ylim(0, 1)
        if measure == "success":
            panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        panel.grid(axis="y", alpha=0.2)
    axes[0].set_ylabel(f"{WORDS[measure]}, mean over seeds and 95 % interval")
    if any(runs.values()):
        axes[0].legend(frameon=False)
    if differences:
        _forest(axes[2], differences, measure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_mechanism(path: Path, runs: Runs) -> None:
    """Draws what happened in training, step by step and averaged over seeds, as a PNG."""
    metrics = [each for each in MECHANISM if any(each in m for of_arm in runs.values() for run in of_arm for m in run.steps.values())]
    figure, axes = _figure(max(1, len(metrics)))
    for panel, metric in zip(axes, metrics, strict=False):
        for arm, of_arm in runs.items():
            steps = sorted({step for run in of_arm for step, m in run.steps.items() if metric in m})
            values = [fmean(run.steps[step][metric] for run in of_arm if metric in run.steps.get(step, {})) for step in steps]
            panel.plot(steps, values, label=arm, linewidth=1.3)
        panel.set_title(MECHANISM[metric], fontsize=10)
        panel.set_xlabel("training step")
        panel.grid(axis="y", alpha=0.2)
    if metrics:
        axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _figure(panels: int) -> tuple[Any, Sequence[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 4.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.ravel(figure.subplots(1, panels)))


def _after(run: StudyRun, budget: float, measure: Measure) -> float:
    values = after(run, "turns", budget, measure)
    return fmean(values.values()) if values else math.nan


def _band(panel: Any, at: Sequence[float], estimates: Sequence[Estimate], label: str) -> None:
    if not at:
        return
    (line,) = panel.plot(at, [e.value for e in estimates], label=label, marker="o" if len(at) < POINTS else None, markersize=4)
    low, high = ([e.value if math.isnan(bound) else bound for e, bound in zip(estimates, side, strict=True)] for side in _bounds(estimates))
    panel.fill_between(at, low, high, color=line.get_color(), alpha=0.14, linewidth=0)


def _bounds(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    return [e.low for e in estimates], [e.high for e in estimates]


def _forest(panel: Any, differences: Mapping[str, Mapping[str, Any]], measure: Measure) -> None:
    unit = 100 if measure == "success" else 1
    for place, found in enumerate(differences.values()):
        if found["difference"] is None:
            continue
        value, low, high = (
            unit * (found[name] if found[name] is not None else found["difference"]) for name in ("difference", "low", "high")
        )
        panel.errorbar([value], [place], xerr=[[value - low], [high - value]], marker="o", capsize=4, color="#1f2937")
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(differences)), list(differences))
    panel.invert_yaxis()
    panel.set_xlabel(f"difference at the endpoint{', points' if measure == 'success' else ''} (95 % interval)")
