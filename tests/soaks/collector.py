"""Keep thousands of sessions of one collector in flight, and measure its memory.

    python -m tests.soaks.collector --in-flight 2000 --episodes 20000

The policy answers after a second without an engine, so that only the collector is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from configs.experiment import Rollout
from environments.client import EnvironmentClient
from environments.protocol import Health
from tasks.agents.agent import Budgets, Message
from tasks.inference.event_loop import event_loop, in_event_loop
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Outcome, Trajectory
from tests.support.counting_servers import counting
from tests.support.processes import started

THINKING_S = 1.0
READINGS = 20


class Thinker:
    """A policy that adds 1 after a second. Its turns wait until all sessions are open."""

    name = "thinker"
    version = 0
    kv_cache_tokens = progress = None
    out_of_process = True

    def __init__(self) -> None:
        self.all_open = asyncio.Event()

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> Thought:
        return Thought(self.all_open)


class Thought:
    def __init__(self, all_open: asyncio.Event) -> None:
        self.prompt = [1, 2, 3]
        self._all_open = all_open

    async def act(self, turn: int) -> Message:
        await self._all_open.wait()
        await asyncio.sleep(THINKING_S)
        return Message("add 1", "add 1", tokens=[1], log_probabilities=[-1.0])

    async def observe(self, observation: str) -> list[int]:
        return [7]

    async def close(self) -> None:
        pass


@dataclass
class Soak:
    """The measurements of a soak.

    Attributes:
        memory_mb: Memory of the collector's process after each twentieth of the episodes, in MB.
        sessions: Maximum number of sessions that were open at once on the server.
        left: Number of sessions that are open at the end.
        failed: Number of episodes that failed.
        seconds: Wall time, in seconds.
        cpu_seconds: CPU time of the collector's process, in seconds.
    """

    memory_mb: list[float] = field(default_factory=list)
    sessions: int = 0
    left: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def growth(self) -> float:
        """Relative growth of the peak memory from the second fifth of the episodes to the last."""
        fifth = len(self.memory_mb) // 5
        early, late = self.memory_mb[fifth : 2 * fifth], self.memory_mb[-fifth:]
        return max(late) / max(early) - 1


def soak(in_flight: int, episodes: int, state_dir: Path) -> Soak:
    """Play the episodes, of two to six turns each, and return the measurements."""
    with started(counting(state_dir, "counting")) as server:
        return _soak(server.url, in_flight, episodes)


def _soak(url: str, in_flight: int, episodes: int) -> Soak:
    found, finished, process, thinker = Soak(), 0, psutil.Process(), Thinker()
    rollout = Rollout(max_concurrent_episodes=in_flight, turn_seconds=120, episode_seconds=600)
    requests = [RolloutRequest(2 + number % 5, number, 0, number) for number in range(episodes)]

    def count(trajectory: Trajectory) -> None:
        nonlocal finished
        finished += 1
        found.failed += trajectory.outcome is not Outcome.SUCCESS
        if finished % (episodes // READINGS) == 0:
            gc.collect()
            found.memory_mb.append(process.memory_info().rss / 2**20)

    def watch() -> None:
        found.sessions = max(found.sessions, in_event_loop(sessions(url)))
        if found.sessions >= in_flight:
            event_loop().call_soon_threadsafe(thinker.all_open.set)

    began, cpu = time.perf_counter(), time.process_time()
    with Collector("counting", (url,), thinker, rollout) as collector:
        for trajectory in collector.stream(Batch("all", requests, RolloutSettings(10, 1.0)), watch):
            count(trajectory)
    found.seconds, found.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    found.left = in_event_loop(sessions(url))
    return found


async def sessions(url: str) -> int:
    async with EnvironmentClient([url]) as client:
        health = (await client.health())[url]
        return health.sessions if isinstance(health, Health) else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--in-flight", type=int, default=2000, help="episodes in flight (default: %(default)s)"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=20_000,
        help="total number of episodes (default: %(default)s)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(arguments.in_flight, arguments.episodes, Path(folder))
    memory = ", ".join(f"{mb:.0f}" for mb in found.memory_mb)
    print(
        f"{arguments.episodes} episodes in {found.seconds:.0f} s "
        f"({found.cpu_seconds / arguments.episodes * 1000:.2f} ms of CPU each), "
        f"{found.sessions} sessions at once, {found.left} left, {found.failed} failed; memory "
        f"{memory} MB, growth {found.growth:+.1%}"
    )


if __name__ == "__main__":
    main()
