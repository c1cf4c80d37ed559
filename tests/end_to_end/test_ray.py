"""A run on a simulated cluster of three Ray nodes: every process is placed by Ray, and nodes of each kind are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.infrastructure import InfraSettings
from environments.client import EnvironmentClient, SessionLostError
from tasks.provision.errors import ProvisionError
from tests.support.ray_nodes import LOOPBACK, kill_and_replace, nodes_with, ray_cluster
from tests.support.small_runs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CPUS = 4
PATIENCE_S = 1200.0
"""Also of a machine on which much else goes on: no test asserts on time."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    former = {name: os.environ.get(name) for name in LOOPBACK}
    with ray_cluster(3, CPUS) as made:
        yield made
    for name, value in former.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def settings(cluster: Any, tmp_path: Path) -> InfraSettings:
    return InfraSettings(ray_address=cluster.address, runs=tmp_path)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_an_episode_on_a_lost_node_is_told_of_it_and_new_ones_are_played_where_its_server_went_on(
    cluster: Any, settings: InfraSettings
) -> None:
    from tasks.provision.environment_servers import environment_replicas

    async def play(urls: tuple[str, ...]) -> None:
        async with EnvironmentClient(urls, deadline_s=PATIENCE_S) as client:
            sessions = [(await client.start(task))[0] for task in range(2)]  # one on each server
            assert len({session.replica.url for session in sessions}) == 2
            ended = kill_and_replace(cluster, nodes_with(cluster, "environments serve")[0], CPUS)
            lost = 0
            for session in sessions:
                try:
                    await client.step(session, "get 1 oak log")
                except SessionLostError:
                    lost += 1
            assert lost == 1
            await asyncio.gather(*(client.start(task) for task in range(8)))
            eventually(lambda: all(has_ended(process) for process in ended))

    with environment_replicas("textcraft", 2, infrastructure=settings) as servers:
        assert len(nodes_with(cluster, "environments serve")) == 2
        asyncio.run(play(servers.urls))
        assert servers.restarts == 1
        servers.check()
    eventually(lambda: not nodes_with(cluster, "environments serve"))


def test_a_node_that_does_not_see_the_runs_is_named(
    cluster: Any, settings: InfraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.provision import ray_cluster as module
    from tests.support.blind_node import blind_on

    module.connected(settings)
    victim = next(iter(cluster.worker_nodes))
    monkeypatch.setattr(module, "look", blind_on(victim.node_id))
    with pytest.raises(ProvisionError, match=rf"^node 127.0.0.1 \({victim.node_id[:8]}\) does not share .*AGENTGYM_RUNS"):
        module._check_nodes(tmp_path)
    monkeypatch.undo()


def test_what_no_node_has_room_for_is_refused_with_what_the_nodes_have(cluster: Any, settings: InfraSettings) -> None:
    from tasks.provision.ray_cluster import Placement, connected

    connected(settings)
    with pytest.raises(ProvisionError, match=r"no room for the engine.*\{GPU: 8, CPU: 99\}.*the nodes have .*\{CPU: 4"):
        Placement("the engine", [{"GPU": 8, "CPU": 99}], "PACK", 2.0)


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    done = run_here(
        "from configs.infrastructure import *; from tasks.provision.ray_cluster import *; connected(infra_settings())", "host:9"
    )
    assert "AGENTGYM_RAY_ADDRESS is host:9, but no Ray cluster answers there" in done.stderr


def run_here(code: str, address: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AGENTGYM_RAY_ADDRESS": address}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


OWNER = """
import os, signal
from configs.infrastructure import infra_settings
from tasks.provision.environment_servers import environment_replicas
with environment_replicas("textcraft", 2, infrastructure=infra_settings()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_runs_on_the_nodes_ends_with_a_flow_that_is_killed(cluster: Any) -> None:
    assert run_here(OWNER, cluster.address).returncode == -signal.SIGKILL
    eventually(lambda: not nodes_with(cluster, "environments serve"))
