"""Benchmark of the SciWorld server with 64 clients: throughput, CPU, memory and latency.

AgentGym's server is not on any package index, so it is not run here. The baseline is its recorded
performance on an idle machine with 2 cores and 64 clients ("recorded").
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any

import psutil

from environments.sciworld.java import INSTALL
from environments.sciworld.world import SciWorld
from tasks.provision.local import LocalServer
from tests.benchmarks.load import Client, cpu_seconds, drive, row, served

CLIENTS = 64
ROUNDS = 5
WARM_UP = 12
"""Rounds of about 770 episodes in total, in which the Java virtual machines compile."""
STEPS = 10
"""Maximum number of steps of an episode."""
CHEAP_STEPS = 100
"""Steps of each client that do not use the simulator, to measure the CPU of a request."""
RECORDED_STEPS = 10.7
"""Steps per second of AgentGym's server with 64 clients and a new connection per request."""
RECORDED_RESETS = 1.9
RECORDED_STEP_CPU_MS = 184.0
RECORDED_RESET_CPU_MS = 1026.0
RECORDED_MB = 10_800.0
"""Resident memory of AgentGym's server with 64 sessions."""

FORMS = (
    "look around",
    "inventory",
    "open door to {}",
    "go to {}",
    "look at {}",
    "pick up {}",
    "wait1",
    "open {}",
)


def action(rng: random.Random, observation: str) -> str:
    """Return a random action with a place or an object of the observation."""
    form = rng.choice(FORMS)
    if "door" in form or "go to" in form:
        seen = re.findall(r"[Dd]oor to the ([a-z ]+?) \(", observation) or ["hallway"]
    else:
        seen = re.findall(
            r"^\t(?:an?|the) ([a-z ]+?)(?: \(|$|,|\.)", observation, re.MULTILINE
        ) or ["cupboard"]
    return form.format(rng.choice(seen))


class Player:
    """A client in AgentGym's dialect.

    Attributes:
        session: Number of the session.
        creates_s: Seconds of each create request.
        resets_s: Seconds of each reset request.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seen: dict[str, Any] = {}
        self.session = 0
        self.creates_s: list[float] = []
        self.resets_s: list[float] = []

    def create(self) -> Client:
        """Create the session."""
        began = time.perf_counter()
        self.session = (yield "/create", {})["id"]
        self.creates_s.append(time.perf_counter() - began)

    def reset(self, index: int) -> Client:
        """Begin a task."""
        began = time.perf_counter()
        self._seen = yield "/reset", {"data_idx": index, "id": self.session}
        self.resets_s.append(time.perf_counter() - began)

    def play(self) -> Client:
        """Perform the steps of an episode."""
        for _ in range(STEPS):
            self._seen = yield (
                "/step",
                {"action": action(self._rng, self._seen["observation"]), "id": self.session},
            )
            if self._seen["done"]:
                return

    def idle(self) -> Client:
        """Perform steps that do not use the simulator."""
        for _ in range(CHEAP_STEPS):
            yield "/step", {"action": "task", "id": self.session}


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark, or [] with a message if Java is missing.

    It takes about a minute.
    """
    if shutil.which("java") is None:
        print(f"sciworld: Java is not installed; run: {INSTALL}")
        return []
    train = list(SciWorld().tasks("agentgym-kinds-train"))
    random.Random(0).shuffle(train)
    with served("sciworld") as server:
        return _rows(server, iter(train))


def _rows(server: LocalServer, tasks: Iterator[int]) -> list[dict[str, Any]]:
    players = [Player(seed) for seed in range(CLIENTS)]
    drive(server, [player.create() for player in players], keep_alive=True)
    for _ in range(WARM_UP):
        drive(server, [player.reset(next(tasks)) for player in players], keep_alive=True)
        drive(server, [player.play() for player in players], keep_alive=True)
    for player in players:
        player.resets_s.clear()
    resets, steps, new_connections, memory = [], [], [], []
    for _ in range(ROUNDS):
        resets.append(
            drive(server, [player.reset(next(tasks)) for player in players], keep_alive=True)
        )
        steps.append(drive(server, [player.play() for player in players], keep_alive=True))
        drive(server, [player.reset(next(tasks)) for player in players], keep_alive=True)
        new_connections.append(
            drive(server, [player.play() for player in players], keep_alive=False)
        )
        memory.append(_resident_mb(server))
    concurrent_ms = [1000 * seconds for player in players for seconds in player.resets_s]
    players[0].resets_s.clear()
    for _ in range(50):
        drive(server, [players[0].reset(next(tasks))], keep_alive=True)

    def recorded(value: float) -> list[float]:
        return [value] * ROUNDS

    name = f"sciworld: {{}}, {CLIENTS} clients, {{}}, vs. AgentGym (recorded)"
    return [
        row(
            name.format("steps", "keep-alive"),
            [load.rate for load in steps],
            "1/s",
            recorded(RECORDED_STEPS),
        ),
        row(
            name.format("steps", "new connection per request"),
            [load.rate for load in new_connections],
            "1/s",
            recorded(RECORDED_STEPS),
        ),
        row(
            name.format("resets", "keep-alive"),
            [load.rate for load in resets],
            "1/s",
            recorded(RECORDED_RESETS),
        ),
        row(
            "sciworld: CPU per step, vs. AgentGym (recorded)",
            [load.cpu_ms for load in steps],
            "ms",
            recorded(RECORDED_STEP_CPU_MS),
        ),
        row(
            "sciworld: CPU per reset, vs. AgentGym (recorded)",
            [load.cpu_ms for load in resets],
            "ms",
            recorded(RECORDED_RESET_CPU_MS),
        ),
        row(
            f"sciworld: memory, {CLIENTS} sessions, vs. AgentGym (recorded)",
            memory,
            "MB",
            recorded(RECORDED_MB),
        ),
        _latency(
            f"sciworld: create p50, {CLIENTS} clients",
            [1000 * player.creates_s[0] for player in players],
        ),
        _latency(f"sciworld: reset p50, {CLIENTS} clients", concurrent_ms),
        _latency(
            "sciworld: reset p50, one client", [1000 * seconds for seconds in players[0].resets_s]
        ),
        row(
            "sciworld: CPU per request without the world's",
            [_request_ms(server, players)],
            "ms",
        ),
    ]


def _resident_mb(server: LocalServer) -> float:
    root = psutil.Process(server.pid)
    return (
        sum(process.memory_info().rss for process in (root, *root.children(recursive=True))) / 1e6
    )


def _latency(name: str, milliseconds: list[float]) -> dict[str, Any]:
    """Return a row with the median, and with the quartiles as `low` and `high`."""
    low, middle, high = statistics.quantiles(milliseconds, n=4)
    return row(name, [middle], "ms") | {"low": round(low, 4), "high": round(high, 4)}


def _request_ms(server: LocalServer, players: list[Player]) -> float:
    """Return the CPU milliseconds of a step over HTTP minus those of the same step in this process.

    Both include the simulator.
    """
    served_ms = drive(server, [player.idle() for player in players], keep_alive=True).cpu_ms
    world = SciWorld(processes=1)
    session = world.create()
    session.reset(0)
    own = psutil.Process().pid
    for _ in range(CHEAP_STEPS * CLIENTS):  # until the code is compiled, as on the server
        session.step("task")
    began_s = cpu_seconds(own)
    for _ in range(CHEAP_STEPS * CLIENTS):
        session.step("task")
    local_s = cpu_seconds(own) - began_s
    world.close()
    return served_ms - 1000 * local_s / (CHEAP_STEPS * CLIENTS)
