"""Tests of collection while environment servers are killed.

`tests/soaks/storm.py` has the command for the full number of episodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.training.groups import learnable_groups
from tests.soaks.storm import collect


@pytest.mark.slow
def test_killed_servers_leave_only_complete_or_reported_groups_with_true_rewards(
    state_dir: Path,
) -> None:
    report = collect(480, 0.2, state_dir)
    assert report.kills >= 2
    assert len(report.trajectories) == 480
    assert report.wrong == []
    assert all(t.reason and t.reward < 1 for t in report.failed)
    groups = learnable_groups(report.trajectories, complete=True)
    assert len(groups.kept) + groups.left_out == 120
    assert groups.left_out == len({t.group for t in report.failed})
    assert groups.left_out < 12  # most failed episodes are retried with success
    assert report.sessions == 0
