"""Draw BabyAI: the whole grid, with the agent's view highlighted.

The level is deterministic, so it is replayed up to the turn.
"""

from __future__ import annotations

from typing import get_args

from markupsafe import Markup

from configs.rules import Rules
from dashboards.drawings import DrawingError
from dashboards.trajectory import TrajectoryView


def draw(trajectory: TrajectoryView, turns: int) -> Markup:
    """Draw the grid after some turns.

    Raises:
        DrawingError: BabyAI's packages are missing, or the installed version has another level.
    """
    try:
        from environments.babyai.world import BabyAIEnvironment
    except ImportError as missing:
        raise DrawingError(f"BabyAI's packages are not installed: {missing}") from None
    # The file does not name the rules. They are found from the first observation.
    levels = [BabyAIEnvironment(rules) for rules in get_args(Rules)]
    try:
        level = next(
            (
                each
                for each in levels
                if each.reset(trajectory.row["task"]) == trajectory.first_observation
            ),
            None,
        )
        if level is None:
            raise DrawingError(
                "the trajectory needs another version of BabyAI than the installed one"
            )
        for turn in trajectory.turns[:turns]:
            if not turn.malformed:
                level.step(turn.action)
        return Markup(
            '<img class=grid alt="The grid after turn {}. The view of the agent is highlighted." '
            'src="{}">'
        ).format(turns, level.picture_url())
    finally:
        for each in levels:
            each.close()
