"""Benchmark of the WebArena server with the embedded sites: latency, throughput and memory.

There is no baseline, because the reference server needs WebArena's own sites.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psutil

from environments.webarena.browser import INSTALL, find_chromium
from environments.webarena.oracle import Oracle
from environments.webarena.tasks import embedded_tasks, plan
from environments.webarena.world import WebArena
from tasks.provision.local import LocalServer
from tests.benchmarks.load import row, served

ROUNDS = 3
SESSIONS = 8
ROUND_S = 10.0


class Client:
    """A client that plays episodes over one keep-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
        self.session = ""

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Send a request with one item in this project's dialect and return the reply."""
        self._http.request(
            "POST",
            f"/v1/{operation}",
            json.dumps({"items": [fields]}),
            {"Content-Type": "application/json"},
        )
        reply: dict[str, Any] = json.load(self._http.getresponse())["items"][0]
        if reply["status"] != 200:
            raise RuntimeError(f"{operation}: {reply}")
        return reply

    def begin(self, index: int) -> str:
        """Begin a task, and create a session if there is none."""
        if not self.session:
            reply = self.ask("create", index=index)
            self.session = reply["session"]
            return str(reply["observation"])
        return str(self.ask("reset", session=self.session, index=index)["observation"])

    def play(self, index: int, until: float = float("inf")) -> tuple[float, list[float]]:
        """Play a task with the oracle, and return the seconds of its reset and of each step."""
        began = time.perf_counter()
        seen = self.begin(index)
        reset_s, steps_s = time.perf_counter() - began, []
        oracle = Oracle(plan(index), embedded_tasks()[index].start_urls[0])
        for turn in range(30):
            action = oracle.action(seen)
            oracle.performed(action, seen)
            began = time.perf_counter()
            reply = self.ask("step", session=self.session, turn=turn, action=action)
            steps_s.append(time.perf_counter() - began)
            seen = reply["observation"]
            if reply["done"] or time.perf_counter() > until:
                break
        return reset_s, steps_s

    def close(self) -> None:
        """Close the session and the connection."""
        if self.session:
            self.ask("close", session=self.session)
        self.session = ""
        self._http.close()


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark, or [] with a message if Chromium is missing.

    It takes about two minutes.
    """
    if find_chromium() is None:
        print(f"webarena: Chromium is not installed; run: {INSTALL}")
        return []
    with served("webarena") as server:
        return _measure(server)


def _measure(server: LocalServer) -> list[dict[str, Any]]:
    tasks = WebArena({}).tasks("train")
    one = Client(server.url)
    one.play(tasks[0])  # starts the browser
    steps_ms, resets_ms = [], []
    for part in range(ROUNDS):
        played = [one.play(index) for index in tasks[part :: len(tasks) // 4][:4]]
        resets_ms.append(statistics.median(reset for reset, _ in played) * 1000)
        steps_ms.append(statistics.median(step for _, steps in played for step in steps) * 1000)
    one.close()
    empty_mb = memory_mb(server.pid)

    clients = [Client(server.url) for _ in range(SESSIONS)]
    rates, costs_ms = [], []
    with ThreadPoolExecutor(SESSIONS) as pool:
        for part in range(ROUNDS):
            began, spent_s = time.perf_counter(), _cpu_s(server.pid)
            until = began + ROUND_S

            def play(number: int, part: int = part, until: float = until) -> int:
                count = 0
                for index in tasks[number * 7 + part :: 11]:
                    count += len(clients[number].play(index, until)[1])
                    if time.perf_counter() > until:
                        break
                return count

            steps = sum(pool.map(play, range(SESSIONS)))
            rates.append(steps / (time.perf_counter() - began))
            costs_ms.append((_cpu_s(server.pid) - spent_s) / steps * 1000)
        list(pool.map(lambda client: client.begin(tasks[0]), clients))
    session_mb = (memory_mb(server.pid) - empty_mb) / SESSIONS
    for client in clients:
        client.close()
    return [
        row("webarena: step, 1 session, p50", steps_ms, "ms"),
        row("webarena: reset, 1 session, p50", resets_ms, "ms"),
        row(f"webarena: steps, {SESSIONS} sessions, with resets", rates, "1/s"),
        row(
            f"webarena: CPU per step, {SESSIONS} sessions, with resets",
            costs_ms,
            "ms",
        ),
        row("webarena: memory per session", [session_mb], "MB"),
    ]


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of the process and its descendants, including reaped ones."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def memory_mb(pid: int) -> float:
    """Return the memory of the process and its descendants in MiB.

    It is the proportional set size, which counts shared memory once.
    """
    root = psutil.Process(pid)
    total = 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20
