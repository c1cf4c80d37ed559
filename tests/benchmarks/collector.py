"""The collector under load: thousands of sessions at once, and servers that are killed while it works.

The policies answer without a model, so that the collector is measured, not an engine.
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
    """The rows of the table; raises where an episode went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = soak(in_flight, episodes, Path(folder))
        calm = collect(stormy_episodes, None, Path(folder))
        storm = collect(stormy_episodes, KILL_EVERY_S, Path(folder))
    assert found.failed == 0, f"{found.failed} episodes failed"
    assert not storm.wrong, f"{len(storm.wrong)} trajectories hold what no server said"
    assert storm.sessions == 0, f"{storm.sessions} sessions were left open"
    left_out = len({t.group for t in storm.failed})
    return [
        row(
            f"collector: sessions at once, of {in_flight} episodes in flight",
            [found.sessions],
            "sessions",
        ),
        row(f"collector: growth of its memory over {episodes} episodes", [found.growth * 100], "%"),
        row("collector: CPU of an episode of 4 turns", [found.cpu_seconds / episodes * 1000], "ms"),
        row(
            f"chaos: groups left out, of {stormy_episodes // 4}; {storm.kills} servers killed",
            [left_out],
            "groups",
        ),
        row(
            f"chaos: time of {stormy_episodes} episodes, against without kills",
            [storm.seconds],
            "s",
            [calm.seconds],
        ),
    ]
