"""The collector under load: thousands of sessions at once, and servers that are killed while it works.

The policies answer without a model, so that the collector is measured, not an engine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KILL_EVERY_S = 3.0


def run(in_flight: int = 2000, episodes: int = 20_000, stormy_episodes: int = 2000) -> list[dict[str, Any]]:
    """The rows of the table; raises where an episode went wrong."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from collector_soak import soak
    from storm import collect

    with tempfile.TemporaryDirectory() as folder:
        found = soak(in_flight, episodes, Path(folder))
        calm = collect(stormy_episodes, None, Path(folder))
        storm = collect(stormy_episodes, KILL_EVERY_S, Path(folder))
    assert found.failed == 0, f"{found.failed} episodes failed"
    assert not storm.wrong, f"{len(storm.wrong)} trajectories hold what no server said"
    assert storm.sessions == 0, f"{storm.sessions} sessions were left open"
    ratio = round(storm.seconds / calm.seconds, 3)
    return [
        _row(f"collector: sessions at once, of {in_flight} episodes in flight", found.sessions, "sessions"),
        _row(f"collector: growth of its memory over {episodes} episodes", round(found.growth * 100, 2), "%"),
        _row("collector: CPU of an episode of 4 turns", round(found.cpu_seconds / episodes * 1000, 3), "ms"),
        _row(
            f"chaos: groups left out, of {stormy_episodes // 4}; {storm.kills} servers killed",
            len({t.group for t in storm.failed}),
            "groups",
        ),
        {
            "name": f"chaos: time of {stormy_episodes} episodes, against without kills",
            "ours": round(storm.seconds, 1),
            "other": round(calm.seconds, 1),
            "ratio": ratio,
            "low": None,
            "high": None,
            "unit": "s",
        },
    ]


def _row(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "ours": value, "other": None, "ratio": None, "low": None, "high": None, "unit": unit}
