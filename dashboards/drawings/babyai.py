"""BabyAI drawn: the whole grid, what the agent sees of it lightened. The level is played again to the turn, which is deterministic."""

from __future__ import annotations

from markupsafe import Markup

from dashboards.drawings import NotDrawnError
from dashboards.trajectory import Shown


def draw(trajectory: Shown, turns: int) -> Markup:
    """The grid after some turns.

    Raises:
        NotDrawnError: The world's packages are missing, or the level of this version goes otherwise.
    """
    try:
        from environments.babyai.world import BabyAIEnvironment
    except ImportError as missing:
        raise NotDrawnError(f"BabyAI's packages are missing here: {missing}") from None
    level = BabyAIEnvironment()
    try:
        seen = level.reset(trajectory.row["task"])
        if seen != trajectory.first_observation:
            raise NotDrawnError("this trajectory was played in another version of BabyAI than is installed here")
        for turn in trajectory.turns[:turns]:
            if not turn.malformed:
                level.step(turn.action)
        return Markup('<img class=grid alt="The grid after turn {}; what the agent sees is lightened" src="{}">').format(
            turns, level.picture_url()
        )
    finally:
        level.close()
