"""Chaos in small; `storm.py` has the command for the full number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.training.groups import learnable_groups
from tests.soaks.storm import collect


@pytest.mark.slow
def test_while_servers_are_killed_every_group_is_whole_or_reported_and_no_reward_is_made_up(
    state_dir: Path,
) -> None:
    report = collect(960, 0.2, state_dir)
    assert report.kills >= 2
    assert len(report.trajectories) == 960
    assert report.wrong == []
    assert all(t.reason and t.reward < 1 for t in report.failed)
    groups = learnable_groups(report.trajectories, complete=True)
    assert len(groups.kept) + groups.left_out == 240
    assert groups.left_out == len({t.group for t in report.failed})
    assert groups.left_out < 24  # retried, not given up
    assert report.sessions == 0
