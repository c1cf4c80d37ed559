"""SciWorld behind the server: steps and resets with 64 clients, latency of create and reset, memory, the server's own CPU of a request.

AgentGym's server is not on any package index, so it cannot be run beside ours. The figures of the other side are quoted: its public
repository as of May 2026, run once on 2 quiet cores with 64 clients that open a connection for each request, as AgentGym's do.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from environments.sciworld.simulator import INSTALL
from environments.sciworld.world import SciWorld
from tasks.provision.local import LocalServer
from tests.benchmarks.babyai import Client

CLIENTS = 64
ROUNDS = 3
WAVES = 2
"""Episodes of each client in a round."""
CHEAP_STEPS = 1000
"""Steps that the simulator has nothing to do for, over which the CPU of a request is taken."""
AGENTGYM_STEPS_PER_S = 10.7
AGENTGYM_RESETS_PER_S = 1.9
AGENTGYM_MEMORY_MB = 10_800.0

FORMS = ("look around", "inventory", "open door to {}", "go to {}", "look at {}", "pick up {}", "wait1", "open {}")


class Wanderer(Client):
    """Plays with random actions over what it sees."""

    def choose(self, observation: str) -> str:
        """A form of action with a place or a thing of the observation."""
        form = self._rng.choice(FORMS)
        if "door" in form or "go to" in form:
            seen = re.findall(r"[Dd]oor to the ([a-z ]+?) \(", observation) or ["hallway"]
        else:
            seen = re.findall(r"^\t(?:an?|the) ([a-z ]+?)(?: \(|$|,|\.)", observation, re.MULTILINE) or ["cupboard"]
        return form.format(self._rng.choice(seen))


def processes(server: LocalServer) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The server's own processes and its simulators."""
    root = psutil.Process(server.pid)
    simulators = [process for process in root.children(recursive=True) if process.name() == "java"]
    return [process for process in (root, *root.children(recursive=True)) if process not in simulators], simulators


def memory_mb(server: LocalServer) -> float:
    """Resident memory of the server with its simulators, in megabytes."""
    own, simulators = processes(server)
    return sum(process.memory_info().rss for process in (*own, *simulators)) / 1e6


def run() -> list[dict[str, Any]]:
    """The rows of the benchmark, about a minute; none, with a word on stderr, where there is no Java."""
    if shutil.which("java") is None:
        sys.stderr.write(f"sciworld: Java is not installed; run: {INSTALL}\n")
        return []
    command = [sys.executable, "-m", "environments", "serve", "sciworld", "--port", "{port}"]
    server = LocalServer("sciworld", command, environment={"PYTHONPATH": str(Path(__file__).parents[2])}, start_deadline_s=240)
    server.start()
    try:
        return asyncio.run(_rows(server))
    finally:
        server.end()


async def _rows(server: LocalServer) -> list[dict[str, Any]]:
    train = list(SciWorld().tasks("agentgym-train"))
    random.Random(0).shuffle(train)
    tasks = itertools.cycle(train)
    # The simulators start, and what each does first is compiled.
    warming = [Wanderer(server.url, seed) for seed in range(8)]
    await asyncio.gather(*(client.open() for client in warming))
    for _ in range(10):
        await asyncio.gather(*(client.reset(next(tasks)) for client in warming))
        await asyncio.gather(*(client.play() for client in warming))
    alone_s = await _seconds([lambda: warming[0].reset(next(tasks))] * 50, together=False)
    for client in warming:
        await client.post("/close", {"id": client.session})
        client.close()

    clients = [Wanderer(server.url, seed) for seed in range(CLIENTS)]
    creates_s = await _seconds([client.open for client in clients])
    step_rates, reset_rates, resets_s, memory = [], [], [], []
    for _ in range(ROUNDS):
        steps = 0
        stepping_s = resetting_s = 0.0
        for _ in range(WAVES):
            began = time.perf_counter()
            resets_s += await _seconds([_reset(client, tasks) for client in clients])
            resetting_s += time.perf_counter() - began
            began = time.perf_counter()
            steps += sum(await asyncio.gather(*(client.play() for client in clients)))
            stepping_s += time.perf_counter() - began
        step_rates.append(steps / stepping_s)
        reset_rates.append(CLIENTS * WAVES / resetting_s)
        memory.append(memory_mb(server))
    request_ms = await _request_ms(server, clients[0], train[0])
    for client in clients:
        client.close()
    return [
        _row(f"sciworld: steps, {CLIENTS} clients, keep-alive (AgentGym's figure quoted)", step_rates, "1/s", AGENTGYM_STEPS_PER_S),
        _row(f"sciworld: resets, {CLIENTS} clients, keep-alive (AgentGym's figure quoted)", reset_rates, "1/s", AGENTGYM_RESETS_PER_S),
        _row(f"sciworld: memory at {CLIENTS} sessions (AgentGym's figure quoted)", memory, "MB", AGENTGYM_MEMORY_MB),
        _row(f"sciworld: create p50, {CLIENTS} at once", [1000 * statistics.median(creates_s)], "ms"),
        _row(f"sciworld: reset p50, {CLIENTS} at once", [1000 * statistics.median(resets_s)], "ms"),
        _row("sciworld: reset p50, one client", [1000 * statistics.median(alone_s)], "ms"),
        _row("sciworld: server's CPU of a request beyond the world's", [request_ms], "ms"),
    ]


def _reset(client: Wanderer, tasks: Iterator[int]) -> Callable[[], Awaitable[Any]]:
    index = next(tasks)
    return lambda: client.reset(index)


async def _seconds(requests: Iterable[Callable[[], Awaitable[Any]]], together: bool = True) -> list[float]:
    """How long each request takes, all made at once or one after another."""

    async def one(request: Callable[[], Awaitable[Any]]) -> float:
        began = time.perf_counter()
        await request()
        return time.perf_counter() - began

    if together:
        return await asyncio.gather(*(one(request) for request in requests))
    return [await one(request) for request in requests]


async def _request_ms(server: LocalServer, client: Wanderer, index: int) -> float:
    """The server's CPU, without the simulators', of a step over HTTP less that of the same step in this process."""
    await client.reset(index)
    own, _ = processes(server)
    before = _cpu_s(own)
    for _ in range(CHEAP_STEPS):
        await client.post("/step", {"action": "task", "id": client.session})
    served_s = _cpu_s(own) - before
    world = SciWorld(processes=1)
    session = world.create()
    session.reset(index)
    before = time.process_time()
    for _ in range(CHEAP_STEPS):
        session.step("task")
    played_s = time.process_time() - before
    world.close()
    return 1000 * (served_s - played_s) / CHEAP_STEPS


def _cpu_s(some: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in some)


def _row(name: str, values: list[float], unit: str, other: float | None = None) -> dict[str, Any]:
    ours = statistics.median(values)
    ratios = [None] * 3 if other is None else [round(value / other, 3) for value in (ours, min(values), max(values))]
    return {"name": name, "ours": round(ours, 3), "other": other, "unit": unit} | dict(zip(("ratio", "low", "high"), ratios, strict=True))
