"""Tests of WebArena screenshots, taken by a replay in a real browser on the embedded sites."""

from __future__ import annotations

import pytest

from dashboards.drawings import DrawingError
from dashboards.drawings.webarena import draw, screenshots
from dashboards.trajectory import view_of
from environments.registry import load_world
from tests.support.chromium import needs_chromium
from tests.support.recorded_runs import played

pytestmark = [pytest.mark.slow, needs_chromium]


def test_each_turn_has_a_screenshot() -> None:
    task = load_world("webarena").tasks("test")[3]
    trajectory = view_of(played("webarena", task, skill=1.0, horizon=12))
    shots = screenshots(trajectory)
    assert trajectory.turns[-1].reward == 1.0
    assert len(shots) == len(trajectory.turns)  # the last action is stop, which closes the window
    assert all(shot.startswith(b"\x89PNG") for shot in shots)
    assert len(set(shots)) == len(shots)


def test_an_unfinished_episode_gets_a_screenshot_of_each_new_turn() -> None:
    task = load_world("webarena").tasks("test")[3]
    trajectory = played("webarena", task, skill=1.0, horizon=2)
    later = view_of(trajectory)
    trajectory.turns = trajectory.turns[:1]
    assert draw(view_of(trajectory), 1) != draw(later, 2)


def test_a_trajectory_of_other_sites_is_not_drawn() -> None:
    task = load_world("webarena").tasks("test")[3]
    trajectory = played("webarena", task, skill=1.0, horizon=1)
    trajectory.first_observation += "\n\t[99] link 'Elsewhere'"
    with pytest.raises(DrawingError):
        screenshots(view_of(trajectory))
