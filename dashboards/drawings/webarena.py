"""Draw WebArena: screenshots of the browser window, next to the accessibility tree of the policy.

Training takes no screenshots. The episode is replayed once in the viewer's own browser on the
embedded sites, which are deterministic. Episodes on real sites are not replayed, because that would
act on them.
"""

from __future__ import annotations

import functools
import threading
from base64 import b64encode
from typing import TYPE_CHECKING

from markupsafe import Markup

from dashboards.drawings import DrawingError
from dashboards.trajectory import TrajectoryView

if TYPE_CHECKING:
    from environments.webarena.world import WebArena

CACHE_SIZE = 16
_one_at_a_time = threading.Lock()
_shots: dict[tuple[object, ...], list[bytes]] = {}


def draw(trajectory: TrajectoryView, turns: int) -> Markup:
    """Show the browser window after some turns.

    Raises:
        DrawingError: There is no browser here, the sites are real ones, or their responses differ
            from the recorded ones.
    """
    actions = [None if turn.malformed else turn.action for turn in trajectory.turns]
    key = (trajectory.row["task"], trajectory.first_observation, *actions)
    with _one_at_a_time:
        if key not in _shots:
            shots = screenshots(trajectory)
            while len(_shots) >= CACHE_SIZE:
                del _shots[next(iter(_shots))]
            _shots[key] = shots
        shots = _shots[key]
    shot = b64encode(shots[min(turns, len(shots) - 1)]).decode()
    return Markup(
        '<img class=window alt="The browser\'s window after turn {}" '
        'src="data:image/png;base64,{}">'
    ).format(turns, shot)


def screenshots(trajectory: TrajectoryView) -> list[bytes]:
    """Return screenshots from before the first turn and after each turn.

    The turn that ends the episode has no screenshot.
    """
    world = _world()
    from environments.webarena.browser import BrowserError

    session = world.create()
    try:
        if session.reset(trajectory.row["task"]) != trajectory.first_observation:
            raise DrawingError(
                "the trajectory was played on other sites than the embedded ones of this version"
            )
        shots = [session.picture()]
        for turn in trajectory.turns:
            if not turn.malformed and session.step(turn.action).done:
                break
            shots.append(session.picture() if not turn.malformed else shots[-1])
        return shots
    except BrowserError as problem:
        raise DrawingError(str(problem)) from None
    finally:
        session.close()


@functools.cache
def _world() -> WebArena:
    try:
        from environments.webarena.world import WebArena as World
    except ImportError as missing:
        raise DrawingError(f"WebArena's packages are not installed: {missing}") from None
    # Without settings it uses the embedded sites and ignores this process's environment variables.
    return World({})
