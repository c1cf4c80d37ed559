"""What all pictures share: figures drawn without a display, axes of shares, and intervals."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.evaluation.statistics import Estimate
from tasks.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, dpi: int = 150) -> Figure:
    """Return an empty figure of a size in inches.

    matplotlib is imported here, because that takes a second.
    """
    # matplotlib reports building its font cache as a warning
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def axis_of_shares(axes: Any) -> None:
    """Let the vertical axis show shares from 0 to 100 %, with a grid."""
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.grid(axis="y", alpha=0.2)


def distances(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far each interval extends below and above its value. 0 for an unknown bound."""
    below = [0.0 if math.isnan(e.low) else max(0.0, e.value - e.low) for e in estimates]
    above = [0.0 if math.isnan(e.high) else max(0.0, e.high - e.value) for e in estimates]
    return [below, above]


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, atomically. The same figure gives the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
