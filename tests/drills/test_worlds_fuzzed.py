"""Tests of each world's server with fuzzed requests and clients that vanish.

There must be no 5xx response, no open session and no memory growth.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tasks.provision.local import LocalServer
from tests.soaks.memory import memory_over_episodes
from tests.support.fuzzing import Fuzzer
from tests.support.playing import WORLDS, server_of, serving_process
from tests.support.processes import started

REQUESTS = 1700
"""Requests per world. `python -m tests.soaks.fuzz` sends any number."""
CLIENTS = 1000
AT_ONCE = 100
LEASE_S = 1.0


@pytest.fixture(scope="module", params=WORLDS)
def server(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[LocalServer]:
    pytest.importorskip(
        {"babyai": "minigrid", "searchqa": "tantivy"}.get(request.param, "minecraft_data")
    )
    with started(server_of(request.param, "--lease", "2", state_dir=state_dir)) as made:
        yield made


def test_a_thousand_vanished_clients_leave_nothing_after_their_lease(server: LocalServer) -> None:
    tasks = requests.get(f"{server.url}/v1/tasks?split=train", timeout=120).json()["tasks"]
    process = serving_process(server)
    files, threads = process.num_fds(), process.num_threads()
    address = urlsplit(server.url)
    for first in range(0, CLIENTS, AT_ONCE):
        connections = []
        for number in range(first, first + AT_ONCE):
            body = b'{"items":[{"index":%d,"lease_s":%g}]}' % (tasks[number % len(tasks)], LEASE_S)
            request = b"POST /v1/create HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
            connections.append(
                socket.create_connection((address.hostname, address.port), timeout=120)
            )
            connections[-1].sendall(
                request if number % 10 else request[:-5]
            )  # some leave before their request is complete
        for number, connection in enumerate(connections):
            if number % 10 > 4:
                assert connection.recv(12).endswith(b"200")
            if number % 2:  # these reset the connection
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    _wait_until_empty(server)
    opened = int(_metric(server, 'environment_sessions_total{how="created"'))
    assert opened >= CLIENTS // 2
    assert opened == _metric(server, 'environment_sessions_total{how="expired"') + _metric(
        server, 'environment_sessions_total{how="closed"'
    )
    assert process.num_fds() <= files + 2
    assert process.num_threads() <= threads + 1


def test_fuzzed_requests_get_no_server_fault(server: LocalServer) -> None:
    tasks = requests.get(f"{server.url}/v1/tasks?split=train", timeout=120).json()["tasks"][:200]
    fuzzer = Fuzzer(server.url, server.name, tasks, seed=0)
    fuzzer.run(REQUESTS)
    assert fuzzer.faults == []
    assert {200, 400, 404, 405, 409, 410, 413, 422} <= set(fuzzer.statuses), (
        "the fuzzer does not get every expected status"
    )
    assert requests.get(f"{server.url}/health", timeout=120).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_memory_does_not_grow_with_the_episodes(world: str) -> None:
    pytest.importorskip({"babyai": "minigrid", "searchqa": "tantivy"}.get(world, "minecraft_data"))
    memory = memory_over_episodes(world, 1500, 3)
    assert max(memory[1:]) <= memory[0] * 1.05


def _wait_until_empty(server: LocalServer) -> None:
    """Wait until no session is open and no request is in flight, up to the test's timeout."""
    quiet = 0
    while quiet < 3:
        quiet = (
            quiet + 1
            if requests.get(f"{server.url}/health", timeout=120).json()["sessions"] == 0
            else 0
        )
        time.sleep(0.2)


def _metric(server: LocalServer, name: str) -> float:
    text = requests.get(f"{server.url}/metrics", timeout=120).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))
