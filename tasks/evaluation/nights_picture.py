"""The picture of the nights: success of each night's challenger and of the champion it met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tasks.evaluation.nights import Night
from tasks.evaluation.pictures import axis_of_shares, distances, new_figure, save

_CHALLENGER, _CHAMPION, _INK = "#2a78d6", "#c2410c", "#1f2937"


def draw_nights(path: Path, nights: Sequence[Night], title: str, most: int = 30) -> None:
    """Draw the newest nights as a PNG of 1500 x 750 pixels. Unmeasured nights leave a gap.

    Args:
        path: File to write.
        nights: In the order of their dates.
        title: Title of the picture.
        most: Maximum number of nights.
    """
    shown = nights[-most:]
    figure = new_figure(10, 5)
    axes = figure.add_subplot()
    for shift, colour, label, estimates in (
        (-0.08, _CHALLENGER, "challenger", [night.challenger_success for night in shown]),
        (0.08, _CHAMPION, "champion that night", [night.champion_success for night in shown]),
    ):
        at = [place for place, estimate in enumerate(estimates) if not math.isnan(estimate.value)]
        axes.errorbar(
            [place + shift for place in at],
            [estimates[place].value for place in at],
            yerr=distances([estimates[place] for place in at]),
            fmt="o",
            color=colour,
            capsize=3,
            label=label,
        )
    promoted = [place for place, night in enumerate(shown) if night.promoted]
    heights = [shown[place].challenger_success.value for place in promoted]
    axes.scatter(
        [place - 0.08 for place in promoted],
        heights,
        s=190,
        facecolors="none",
        edgecolors=_INK,
        label="became champion",
    )
    labelled = range(len(shown) - 1, -1, -(1 + len(shown) // 16))
    axes.set_xticks(
        labelled, [shown[place].date for place in labelled], rotation=60 if len(labelled) > 6 else 0
    )
    axes.set_xlim(-0.6, max(0.6, len(shown) - 0.4))
    axis_of_shares(axes)
    axes.set_ylabel("success on held-out tasks")
    axes.set_title(title, color=_INK, loc="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    save(figure, path)
