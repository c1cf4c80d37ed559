"""The picture of a run: training success, held-out measurements and the growing horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.pictures import axis_of_shares, distances, new_figure, save

_TRAINING, _HELD_OUT, _HORIZON, _INK = "#2a78d6", "#c2410c", "#6b7280", "#1f2937"
_WINDOW = 5  # training steps in the moving average
_MOST_LABELS = 12  # maximum number of phases with a label, to avoid crowding


def draw_learning_curve(
    path: Path,
    steps: Mapping[int, Mapping[str, float]],
    results: Sequence[EvaluationResult],
    title: str = "Learning curve",
) -> None:
    """Draw a run as a PNG of 1500 x 840 pixels.

    Args:
        path: File to write.
        steps: Maps the training step, counted from 1, to its metrics. The metrics used are
            rollout/success (a share), rollout/reward (drawn if it differs from success) and
            rollout/horizon (turns, where stretches of one horizon are shaded as phases).
        results: The evaluations, drawn as points with their 95 % intervals at their steps.
        title: Title of the picture.
    """
    figure = new_figure(10, 5.6)
    from matplotlib.ticker import MaxNLocator

    turns = figure.add_subplot()
    shares = turns.twinx()  # drawn above the horizon's axis

    phases = [
        (horizon, [step for step, _ in group])
        for horizon, group in groupby(_series(steps, "rollout/horizon"), key=lambda pair: pair[1])
    ]
    for i, (horizon, members) in enumerate(phases):
        begin, end = members[0] - 1, members[-1]
        turns.axvspan(begin, end, color=_HORIZON, alpha=0.05 if i % 2 else 0.11, linewidth=0)
        name = "horizon (turns, right)" if i == 0 else "_"
        turns.hlines(horizon, begin, end, color=_HORIZON, linewidth=1.2, label=name)
        if len(phases) <= _MOST_LABELS:
            turns.annotate(
                f"{horizon:g}",
                (begin, horizon),
                xytext=(4, 3),
                textcoords="offset points",
                color=_HORIZON,
            )
    if phases:
        horizons, ends = [horizon for horizon, _ in phases], [members[-1] for _, members in phases]
        turns.vlines(ends[:-1], horizons[:-1], horizons[1:], color=_HORIZON, linewidth=1.2)
        turns.set_ylim(0, 1.15 * max(horizons))

    success = _series(steps, "rollout/success")
    reward = _series(steps, "rollout/reward")
    if success:
        shares.plot(*zip(*success, strict=True), ".", color=_TRAINING, markersize=4, alpha=0.45)
        shares.plot(
            *zip(*_smooth(success), strict=True),
            color=_TRAINING,
            linewidth=2,
            label=f"training success (mean of {_WINDOW} steps)",
        )
    if reward and any(abs(a[1] - b[1]) > 1e-9 for a, b in zip(success, reward, strict=False)):
        shares.plot(
            *zip(*_smooth(reward), strict=True),
            color=_TRAINING,
            linewidth=1.4,
            linestyle=(0, (4, 2)),
            label="training reward",
        )
    measured = [result for result in results if result.success.n]
    if measured:
        values = [result.success for result in measured]
        shares.errorbar(
            [result.step for result in measured],
            [e.value for e in values],
            yerr=distances(values),
            color=_HELD_OUT,
            marker="o",
            markersize=6,
            linestyle="-" if len(measured) > 2 else "none",  # two points do not show a trend
            linewidth=1.2,
            elinewidth=1.6,
            capsize=4,
            label="held-out success, 95 % interval",
        )

    axis_of_shares(shares)
    shares.yaxis.set_label_position("left")
    shares.yaxis.tick_left()
    turns.yaxis.set_label_position("right")
    turns.yaxis.tick_right()
    turns.yaxis.set_major_locator(MaxNLocator(integer=True))
    turns.xaxis.set_major_locator(MaxNLocator(integer=True))
    shares.set_ylabel("success", color=_INK)
    turns.set_ylabel("horizon (turns)", color=_HORIZON)
    turns.tick_params(axis="y", colors=_HORIZON)
    turns.set_xlabel("training step", color=_INK)
    turns.set_title(title, loc="left", color=_INK, fontweight="bold")
    for axes in (turns, shares):
        for side in axes.spines.values():
            side.set_visible(False)
    handles = [
        pair
        for axes in (shares, turns)
        for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    if handles:
        figure.legend(
            *zip(*handles, strict=True),
            loc="outside lower center",
            ncols=len(handles),
            frameon=False,
        )
    save(figure, path)


def _series(steps: Mapping[int, Mapping[str, float]], name: str) -> list[tuple[int, float]]:
    return [(step, steps[step][name]) for step in sorted(steps) if name in steps[step]]


def _smooth(series: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Average each point with the preceding ones, `_WINDOW` points in total."""
    values = [value for _, value in series]
    windows = [values[max(0, i + 1 - _WINDOW) : i + 1] for i in range(len(values))]
    return [
        (step, sum(window) / len(window)) for (step, _), window in zip(series, windows, strict=True)
    ]
