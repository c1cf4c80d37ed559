"""The world beside a turn, drawn. One module a world; a world without one is shown by its text alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from markupsafe import Markup

from configs.mixture import member_of
from dashboards.trajectory import Shown

DRAWINGS = {
    "babyai": "dashboards.drawings.babyai",
    "sciworld": "dashboards.drawings.sciworld",
    "searchqa": "dashboards.drawings.searchqa",
    "textcraft": "dashboards.drawings.textcraft",
    "webarena": "dashboards.drawings.webarena",
}


class NotDrawnError(Exception):
    """A world that cannot be drawn here, with the reason, such as a package that is missing."""


def drawn(trajectory: Shown, turns: int) -> Markup | None:
    """The world after the first `turns` turns of a trajectory, as HTML; None for a world without a drawing.

    Raises:
        NotDrawnError: It cannot be drawn here; the message says why.
    """
    world, task = member_of(trajectory.row["environment"], trajectory.row["task"])
    module = DRAWINGS.get(world)
    if module is None:
        return None
    of_world = replace(trajectory, row=trajectory.row | {"environment": world, "task": task})
    draw: Callable[[Shown, int], Markup] = import_module(module).draw
    return draw(of_world, turns)
