"""SearchQA's embedded questions behind the server: latency of a search over 150,000 passages, searches per second, cost of HTTP.

AgentGym's server searches 21 million passages with 64 GB of vectors, so it cannot be run beside
ours: there are no figures of the
other side.
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
"""Searches of each round, of questions and of the expert's hops alike."""
CLIENTS = 64
CHEAP_STEPS = 100
"""Steps of each client over which the CPU of HTTP and sessions is taken."""


class Client:
    """Searches in one session over one connection that is kept alive."""

    def __init__(self, url: str, task: int) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
        self._session = self.ask("create", [{"index": task}])[0]["session"]
        self._turn = 0

    def ask(self, operation: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One request of our dialect."""
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
        """Searches for all the queries in one request; returns the seconds that it took."""
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
    """The rows of the benchmark, about a minute."""
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
        row("searchqa: CPU of HTTP and sessions, of a step", http_ms, "ms"),
    ]


def _queries(world: SearchQA) -> Iterator[str]:
    """Whole questions and the expert's searches in turn, as agents search at the beginning and at the end of their training."""
    session = world.create()
    for index in itertools.cycle(world.tasks("train")):
        yield session.reset(index).removeprefix("Question: ")
        while (action := session.oracle_action()).startswith("<search>"):
            yield action.removeprefix("<search>").removesuffix("</search>")
            session.step(action)


def _http_ms(server: LocalServer, world: SearchQA, task: int) -> float:
    """CPU of a step over HTTP with all the clients at once, less that of the same step in this process.

    Its action is neither a search nor an answer: a search costs several times what is to be
    measured, and in a server that
    does other things between two of them, with colder caches, more than in a loop.
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
    alone = world.create()
    alone.reset(task)
    began = time.process_time()
    for _ in range(CHEAP_STEPS * CLIENTS):
        alone.step("Let me think.")
    return served_ms - 1000 * (time.process_time() - began) / (CHEAP_STEPS * CLIENTS)
