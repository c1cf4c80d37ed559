"""WebArena drawn: what the browser's window showed, beside the accessibility tree that the policy read.

Training takes no screenshots. The episode is played again in a browser of the viewer's own, once for all its turns, on the embedded
sites, which answer the same actions alike. Real sites are not played again: that would act on them.
"""

from __future__ import annotations

import functools
import threading
from base64 import b64encode
from typing import TYPE_CHECKING

from markupsafe import Markup

from dashboards.drawings import NotDrawnError
from dashboards.trajectory import Address, Shown

if TYPE_CHECKING:
    from environments.webarena.world import WebArena

REMEMBERED = 16
_one_at_a_time = threading.Lock()
_shots: dict[Address, list[bytes]] = {}


def draw(trajectory: Shown, turns: int) -> Markup:
    """What the window showed after some turns.

    Raises:
        NotDrawnError: There is no browser here, the sites are real ones, or they answer otherwise than recorded.
    """
    with _one_at_a_time:
        if trajectory.address not in _shots:
            shots = screenshots(trajectory)
            while len(_shots) >= REMEMBERED:
                del _shots[next(iter(_shots))]
            _shots[trajectory.address] = shots
        shots = _shots[trajectory.address]
    shot = b64encode(shots[min(turns, len(shots) - 1)]).decode()
    return Markup('<img class=window alt="The browser\'s window after turn {}" src="data:image/png;base64,{}">').format(turns, shot)


def screenshots(trajectory: Shown) -> list[bytes]:
    """What the window showed before the first turn and after each one; the turn that ends the episode shows nothing new."""
    world = _world()
    from environments.webarena.browser import BrowserError

    session = world.create()
    try:
        if session.reset(trajectory.row["task"]) != trajectory.first_observation:
            raise NotDrawnError("this trajectory was played on other sites than the embedded ones of this version")
        shots = [session.picture()]
        for turn in trajectory.turns:
            if not turn.malformed and session.step(turn.action).done:
                break
            shots.append(session.picture() if not turn.malformed else shots[-1])
        return shots
    except BrowserError as problem:
        raise NotDrawnError(str(problem)) from None
    finally:
        session.close()


@functools.cache
def _world() -> WebArena:
    try:
        from environments.webarena.world import WebArena as World
    except ImportError as missing:
        raise NotDrawnError(f"WebArena's packages are missing here: {missing}") from None
    return World({})  # without settings it is the embedded sites, whatever the environment of this process says
