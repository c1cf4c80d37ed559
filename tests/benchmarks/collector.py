"""Benchmark of the collector with thousands of concurrent sessions, and with killed servers.

The policies use no model, so the benchmark measures the collector and not an engine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.load import row
from tests.soaks.collector import soak
from tests.soaks.storm import collect

KILL_EVERY_S = 3.0


def run(
    in_flight: int = 2000, episodes: int = 20_000, stormy_episodes: int = 2000
) -> list[dict[str, Any]]:
    """Return the rows of the benchmark. Raise AssertionError if an episode is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = soak(in_flight, episodes, Path(folder))
        calm = collect(stormy_episodes, None, Path(folder))
        storm = collect(stormy_episodes, KILL_EVERY_S, Path(folder))
    assert found.failed == 0, f"{found.failed} episodes failed"
    assert not storm.wrong, f"{len(storm.wrong)} trajectories contain text that no server sent"
    assert storm.sessions == 0, f"{storm.sessions} sessions were left open"
    lost_groups = len({t.group for t in storm.failed})
    return [
        row(
            f"collector: concurrent sessions with {in_flight} episodes in flight",
            [found.sessions],
            "sessions",
        ),
        row(f"collector: memory growth over {episodes} episodes", [found.growth * 100], "%"),
        row("collector: CPU per episode of 4 turns", [found.cpu_seconds / episodes * 1000], "ms"),
        row(
            f"chaos: lost groups of {stormy_episodes // 4} with {storm.kills} killed servers",
            [lost_groups],
            "groups",
        ),
        row(
            f"chaos: time of {stormy_episodes} episodes, vs. without kills",
            [storm.seconds],
            "s",
            [calm.seconds],
        ),
    ]
