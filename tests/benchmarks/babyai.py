"""Benchmark of the BabyAI server: steps and resets per second, and CPU time of each.

The load is 64 clients, or batches of 64 steps. AgentGym's server is not on any package index, so it
is not run here. The baseline is its recorded performance on an idle machine with 2 cores, with 64
clients and a new connection per request ("recorded").
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Awaitable, Iterable
from typing import Any
from urllib.parse import urlsplit

from environments.babyai.world import BabyAI
from tasks.provision.local import LocalServer
from tests.benchmarks.load import cpu_seconds, row, served

CLIENTS = 64
ROUNDS = 5
WAVES = 4
"""Episodes of each client in a round."""
STEPS = 10
"""Maximum number of steps of an episode."""
RECORDED_STEPS, RECORDED_RESETS = 456.0, 122.0
"""Steps and resets per second of AgentGym's server with 64 clients."""
RECORDED_STEP_MS, RECORDED_RESET_MS = 2.2, 8.2
"""CPU milliseconds per step and per reset of AgentGym's server."""


class Client:
    """A client that plays random actions over one keep-alive connection in AgentGym's dialect."""

    def __init__(self, url: str, seed: int) -> None:
        self._address = urlsplit(url)
        self._rng = random.Random(seed)
        self.session = 0
        self.observation = ""
        self.done = True

    async def open(self) -> None:
        """Connect and create a session."""
        self._streams = await asyncio.open_connection(
            self._address.hostname, self._address.port, limit=2**24
        )
        self.session = (await self.post("/create", {}))["id"]

    async def reset(self, index: int) -> None:
        """Begin a task."""
        self._update(await self.post("/reset", {"data_idx": index, "id": self.session}))

    async def step(self) -> int:
        """Perform one of the offered actions and return 1, or return 0 after the episode's end."""
        if self.done:
            return 0
        self._update(
            await self.post("/step", {"action": self.choose(self.observation), "id": self.session})
        )
        return 1

    def choose(self, observation: str) -> str:
        """Return one of the offered actions at random."""
        return self._rng.choice(re.findall('"([^"]+)"', observation))

    async def play(self) -> int:
        """Play the steps of an episode and return their number."""
        return sum([await self.step() for _ in range(STEPS)])

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request and return the reply."""
        reader, writer = self._streams
        content = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        )
        writer.write(content)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length is None or b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{path}: {head.decode()}")
        return json.loads(await reader.readexactly(int(length[1])))

    def close(self) -> None:
        """Close the connection."""
        self._streams[1].close()

    def _update(self, reply: Any) -> None:
        self.observation, self.done = reply["observation"], reply["done"]


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark. It takes about a minute."""
    with served("babyai") as server:
        return asyncio.run(_rows(server))


async def _rows(server: LocalServer) -> list[dict[str, Any]]:
    clients = [Client(server.url, seed) for seed in range(CLIENTS)]
    await asyncio.gather(*(client.open() for client in clients))
    tasks = itertools.cycle(BabyAI().tasks("train"))
    reset_rates, step_rates, batch_rates, reset_ms, step_ms = [], [], [], [], []
    for number in range(ROUNDS + 1):
        resets_s = steps_s = resets_cpu_s = steps_cpu_s = 0.0
        steps = 0
        for _ in range(WAVES):
            _, wall_s, cpu_s = await _timed(
                server.pid, (client.reset(next(tasks)) for client in clients)
            )
            resets_s, resets_cpu_s = resets_s + wall_s, resets_cpu_s + cpu_s
            done, wall_s, cpu_s = await _timed(server.pid, (client.play() for client in clients))
            steps, steps_s, steps_cpu_s = steps + sum(done), steps_s + wall_s, steps_cpu_s + cpu_s
        if number == 0:
            continue  # the first round warms up
        reset_rates.append(CLIENTS * WAVES / resets_s)
        reset_ms.append(resets_cpu_s / (CLIENTS * WAVES) * 1000)
        step_rates.append(steps / steps_s)
        step_ms.append(steps_cpu_s / steps * 1000)
        batch_rates.append(await _batch_rate(clients[0], tasks))
    for client in clients:
        client.close()
    name = "babyai: {}, vs. AgentGym (recorded)"
    return [
        _row(
            name.format(f"steps, {CLIENTS} clients, keep-alive"), step_rates, "1/s", RECORDED_STEPS
        ),
        _row(
            name.format(f"resets, {CLIENTS} clients, keep-alive"),
            reset_rates,
            "1/s",
            RECORDED_RESETS,
        ),
        _row(name.format(f"steps, batches of {CLIENTS}"), batch_rates, "1/s", RECORDED_STEPS),
        _row(name.format("server CPU per step"), step_ms, "ms", RECORDED_STEP_MS),
        _row(name.format("server CPU per reset"), reset_ms, "ms", RECORDED_RESET_MS),
    ]


async def _timed(pid: int, work: Iterable[Awaitable[Any]]) -> tuple[list[Any], float, float]:
    """Run the awaitables concurrently. Return results, wall-clock seconds and server CPU time."""
    cpu_s, began = cpu_seconds(pid), time.perf_counter()
    results = await asyncio.gather(*work)
    return results, time.perf_counter() - began, cpu_seconds(pid) - cpu_s


async def _batch_rate(client: Client, tasks: Iterable[int]) -> float:
    """Return the steps per second when each request steps all sessions, in the own dialect."""
    begun = (
        await client.post(
            "/v1/create",
            {"items": [{"index": index} for index in itertools.islice(tasks, CLIENTS)]},
        )
    )["items"]
    going = {reply["session"]: reply["observation"] for reply in begun}
    steps, began = 0, time.perf_counter()
    for turn in range(STEPS):
        items = [
            {"session": session, "turn": turn, "action": client.choose(observation)}
            for session, observation in going.items()
        ]
        if not items:
            break
        replies = (await client.post("/v1/step", {"items": items}))["items"]
        going = {
            item["session"]: reply["observation"]
            for item, reply in zip(items, replies, strict=True)
            if not reply["done"]
        }
        steps += len(items)
    seconds = time.perf_counter() - began
    await client.post("/v1/close", {"items": [{"session": reply["session"]} for reply in begun]})
    return steps / seconds


def _row(name: str, values: list[float], unit: str, recorded: float) -> dict[str, Any]:
    return row(name, values, unit, [recorded] * len(values))
