"""Plays many episodes of SciWorld on a server of its own and says how its memory goes: python tests/integration/sciworld_soak.py 500."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from environments.sciworld.world import SciWorld  # noqa: E402
from tasks.provision.local import LocalServer  # noqa: E402
from tests.benchmarks.sciworld import Wanderer, memory_mb  # noqa: E402

CLIENTS = 10
VANISHING = 1000
LEASE_S = 5.0
PATIENCE_S = 300.0


def memory_over_episodes(episodes: int, readings: int) -> list[float]:
    """Megabytes of the server with its simulators, without sessions, after each of `readings` equal parts of the episodes.

    Before the first and after the last of them a thousand clients begin an episode and are never heard of again.
    """
    command = [sys.executable, "-m", "environments", "serve", "sciworld", "--port", "{port}"]
    server = LocalServer("sciworld", command, environment={"PYTHONPATH": str(ROOT)}, start_deadline_s=240)
    server.start()
    try:
        return asyncio.run(_play(server, episodes, readings))
    finally:
        server.end()


async def _play(server: LocalServer, episodes: int, readings: int) -> list[float]:
    train = list(SciWorld().tasks("train"))
    random.Random(0).shuffle(train)
    tasks = itertools.cycle(train)
    found = []
    await _vanish(server, tasks)
    for part in range(1, readings + 1):
        ours = iter(list(itertools.islice(tasks, episodes // readings)))
        await asyncio.gather(*(_play_all(Wanderer(server.url, seed), ours) for seed in range(CLIENTS)))
        if part == readings:
            await _vanish(server, tasks)
        found.append(memory_mb(server))
        sys.stderr.write(f"{part * episodes // readings} episodes: {found[-1]:.0f} MB\n")
    return found


async def _play_all(client: Wanderer, tasks: Iterator[int]) -> None:
    """Plays the tasks that the other clients leave."""
    await client.open()
    for index in tasks:
        await client.reset(index)
        await client.play()
    await client.post("/close", {"id": client.session})
    client.close()


async def _vanish(server: LocalServer, tasks: Iterator[int]) -> None:
    """A thousand sessions begin, and end with their lease."""
    client = Wanderer(server.url, 0)
    await client.open()
    items = [{"index": index, "lease_s": LEASE_S} for index in itertools.islice(tasks, VANISHING)]
    replies = (await client.post("/v1/create", {"items": items}))["items"]
    assert all(reply["status"] == 200 for reply in replies)
    await client.post("/close", {"id": client.session})
    client.close()
    deadline = time.monotonic() + PATIENCE_S
    while sessions(server):
        assert time.monotonic() < deadline, "sessions outlive their lease"
        await asyncio.sleep(0.5)


def sessions(server: LocalServer) -> int:
    """Sessions open on the server."""
    with urllib.request.urlopen(f"{server.url}/health", timeout=PATIENCE_S) as answer:
        count: int = json.load(answer)["sessions"]
        return count


if __name__ == "__main__":
    memory = memory_over_episodes(int(sys.argv[1]) if len(sys.argv) > 1 else 500, 10)
    growth = max(memory[1:]) / memory[0] - 1
    sys.stdout.write(f"growth after the first tenth: {growth:+.1%}\n")
    sys.exit(growth > 0.05)
