"""Drawings of environments after each turn.

Each environment with a drawing has one module here. Others are shown as text only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from markupsafe import Markup

from configs.mixture import member_of
from dashboards.trajectory import TrajectoryView

DRAWINGS = {
    "babyai": "dashboards.drawings.babyai",
    "sciworld": "dashboards.drawings.sciworld",
    "searchqa": "dashboards.drawings.searchqa",
    "textcraft": "dashboards.drawings.textcraft",
    "webarena": "dashboards.drawings.webarena",
}


class DrawingError(Exception):
    """The environment cannot be drawn here, e.g. because a package is missing."""


def draw_trajectory(trajectory: TrajectoryView, turns: int) -> Markup | None:
    """Draw the environment after the first `turns` turns of a trajectory, as HTML.

    None if the environment has no drawing.

    Raises:
        DrawingError: It cannot be drawn here. The message gives the reason.
    """
    world, task = member_of(trajectory.row["environment"], trajectory.row["task"])
    module = DRAWINGS.get(world)
    if module is None:
        return None
    of_world = replace(trajectory, row=trajectory.row | {"environment": world, "task": task})
    draw: Callable[[TrajectoryView, int], Markup] = import_module(module).draw
    return draw(of_world, turns)
