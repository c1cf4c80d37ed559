"""Benchmark of the SearchQA server with the embedded questions and 150,000 passages.

It measures the latency and throughput of searches and the CPU time of HTTP. There is no baseline,
because AgentGym's server searches 21 million passages with 64 GB of vectors.
"""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from environments.searchqa.world import SearchQA
from tasks.provision.local import LocalServer
from tests.benchmarks.load import Client as Driven
from tests.benchmarks.load import drive, row, served

ROUNDS = 5
SEARCHES = 600
"""Searches of each round, for whole questions and for the expert's hops."""
CLIENTS = 64
CHEAP_STEPS = 100
"""Steps of each client to measure the CPU of HTTP and sessions."""


class Client:
    """A client that searches in one session over one keep-alive connection."""

    def __init__(self, url: str, task: int) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
        self._session = self.ask("create", [{"index": task}])[0]["session"]
        self._turn = 0

    def ask(self, operation: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send a request in this project's dialect and return the replies."""
        self._http.request(
            "POST",
            f"/v1/{operation}",
            json.dumps({"items": items}),
            {"Content-Type": "application/json"},
        )
        replies: list[dict[str, Any]] = json.load(self._http.getresponse())["items"]
        if any(reply["status"] != 200 for reply in replies):
            raise RuntimeError(f"{operation}: {replies}")
        return replies

    def search(self, *queries: str) -> float:
        """Search for all queries in one request and return its seconds."""
        items = [
            {
                "session": self._session,
                "turn": self._turn + n,
                "action": f"<search>{query}</search>",
            }
            for n, query in enumerate(queries)
        ]
        self._turn += len(queries)
        began = time.perf_counter()
        self.ask("step", items)
        return time.perf_counter() - began


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark. It takes about a minute."""
    with served("searchqa") as server:
        return _measure(server, SearchQA())


def _measure(server: LocalServer, world: SearchQA) -> list[dict[str, Any]]:
    queries = _queries(world)
    task = world.tasks("train")[0]
    one = Client(server.url, task)
    for query in itertools.islice(queries, SEARCHES):
        one.search(query)

    latencies_ms, http_ms, batched = [], [], []
    for _ in range(ROUNDS):
        some = list(itertools.islice(queries, SEARCHES))
        latencies_ms.append(statistics.median(one.search(query) for query in some) * 1000)
        batched.append(
            len(some)
            / sum(one.search(*some[n : n + CLIENTS]) for n in range(0, len(some), CLIENTS))
        )
        http_ms.append(_http_ms(server, world, task))

    clients = [Client(server.url, task) for _ in range(CLIENTS)]
    rates = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(ROUNDS):
            shares = [list(itertools.islice(queries, 2 * SEARCHES // CLIENTS)) for _ in clients]
            began = time.perf_counter()
            list(
                pool.map(
                    lambda client, share: [client.search(query) for query in share], clients, shares
                )
            )
            rates.append(sum(map(len, shares)) / (time.perf_counter() - began))
    return [
        row("searchqa: search over 150,000 passages, 1 session, p50", latencies_ms, "ms"),
        row(f"searchqa: searches, {CLIENTS} sessions, keep-alive", rates, "1/s"),
        row(f"searchqa: searches, batches of {CLIENTS}", batched, "1/s"),
        row("searchqa: CPU of HTTP and sessions per step", http_ms, "ms"),
    ]


def _queries(world: SearchQA) -> Iterator[str]:
    """Yield questions and the expert's searches.

    Agents search for whole questions early in training, and like the expert at its end.
    """
    session = world.create()
    for index in itertools.cycle(world.tasks("train")):
        yield session.reset(index).removeprefix("Question: ")
        while (action := session.oracle_action()).startswith("<search>"):
            yield action.removeprefix("<search>").removesuffix("</search>")
            session.step(action)


def _http_ms(server: LocalServer, world: SearchQA, task: int) -> float:
    """Return the CPU milliseconds of a step over HTTP minus those of the same step in this process.

    All clients step concurrently. The action is neither a search nor an answer, because a search
    costs several times more than HTTP. It is also slower on a server than in a loop, because the
    server's other work evicts its data from the CPU caches.
    """
    sessions: list[str] = []

    def create() -> Driven:
        sessions.append((yield "/v1/create", {"items": [{"index": task}]})["items"][0]["session"])

    def idle(session: str) -> Driven:
        for turn in range(CHEAP_STEPS):
            yield (
                "/v1/step",
                {"items": [{"session": session, "turn": turn, "action": "Let me think."}]},
            )

    drive(server, [create() for _ in range(CLIENTS)], keep_alive=True)
    served_ms = drive(server, [idle(session) for session in sessions], keep_alive=True).cpu_ms
    local = world.create()
    local.reset(task)
    began = time.process_time()
    for _ in range(CHEAP_STEPS * CLIENTS):
        local.step("Let me think.")
    return served_ms - 1000 * (time.process_time() - began) / (CHEAP_STEPS * CLIENTS)
