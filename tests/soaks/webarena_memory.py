"""Measure the memory of a WebArena server over many episodes.

python -m tests.soaks.webarena_memory 500
"""

from __future__ import annotations

import sys
from itertools import cycle

from environments.webarena.world import WebArena
from tests.benchmarks.webarena import Client, memory_mb
from tests.support.playing import server_of
from tests.support.processes import started


def memory_over_episodes(episodes: int, readings: int) -> list[float]:
    """Return the memory of the server and its browsers after each of `readings` parts, in MB.

    No session is open during a reading.
    """
    with started(server_of("webarena")) as server:
        found = []
        tasks = cycle(WebArena({}).tasks("train"))
        for part in range(readings):
            client = Client(server.url)
            for _ in range(part * episodes // readings, (part + 1) * episodes // readings):
                client.play(next(tasks))
            client.close()
            found.append(memory_mb(server.pid))
            sys.stderr.write(f"{(part + 1) * episodes // readings} episodes: {found[-1]:.0f} MB\n")
        return found


if __name__ == "__main__":
    memory = memory_over_episodes(int(sys.argv[1]) if len(sys.argv) > 1 else 500, 10)
    growth = max(memory[1:]) / memory[0] - 1
    sys.stdout.write(f"growth after the first tenth: {growth:+.1%}\n")
    sys.exit(growth > 0.05)
