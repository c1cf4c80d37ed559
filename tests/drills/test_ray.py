"""A run on a simulated cluster of three Ray nodes: every process is placed by Ray, and nodes of each kind are killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.infrastructure import InfraSettings
from environments.client import EnvironmentClient, SessionLostError
from tasks.evaluation.benchmark import read_evaluation
from tasks.provision.errors import ProvisionError
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.processes import ended
from tests.support.ray_nodes import (
    LOOPBACK,
    held_still,
    kill_and_replace,
    nodes_with,
    ray_cluster,
    servers_answer,
)
from tests.support.small_runs import ROOT, end, finish, folder, metrics, start, wait_for

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


def test_episode_on_a_lost_node_fails_and_its_server_restarts_elsewhere(
    cluster: Any, settings: InfraSettings
) -> None:
    from tasks.provision.environment_servers import environment_replicas

    async def play(urls: tuple[str, ...]) -> None:
        async with EnvironmentClient(urls, deadline_s=PATIENCE_S) as client:
            sessions = [(await client.start(task))[0] for task in range(2)]  # one on each server
            assert len({session.replica.url for session in sessions}) == 2
            killed = kill_and_replace(cluster, nodes_with(cluster, "environments serve")[0], CPUS)
            lost = 0
            for session in sessions:
                try:
                    await client.step(session, "get 1 oak log")
                except SessionLostError:
                    lost += 1
            assert lost == 1
            await asyncio.gather(*(client.start(task) for task in range(8)))
            eventually(lambda: all(ended(process) for process in killed))

    with environment_replicas("textcraft", 2, infrastructure=settings) as servers:
        assert len(nodes_with(cluster, "environments serve")) == 2
        asyncio.run(play(servers.urls))
        assert servers.restarts == 1
        servers.check()
    eventually(lambda: not nodes_with(cluster, "environments serve"))


def test_node_without_the_runs_folder_is_named(
    cluster: Any, settings: InfraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.provision import ray_cluster as module
    from tests.support.blind_node import blind_on

    module.connected(settings)
    victim = next(iter(cluster.worker_nodes))
    monkeypatch.setattr(module, "check_node", blind_on(victim.node_id))
    with pytest.raises(ProvisionError, match=rf"{victim.node_id[:8]}.*AGENTGYM_RUNS"):
        module._check_nodes(tmp_path)
    monkeypatch.undo()


def test_node_without_the_shared_storage_is_named(
    cluster: Any, settings: InfraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.provision import ray_cluster as module
    from tasks.tracking.shared_storage import SharedStorage, SharedStorageError
    from tests.support.blind_node import elsewhere_on

    for name in ("stored", "elsewhere"):
        (tmp_path / name).mkdir()
    url = f"file://{tmp_path}/stored"
    module.connected(settings)
    made = module.RayCluster(cluster.address, tmp_path, url)  # every node reads and writes there
    assert not list((tmp_path / "stored").iterdir())
    made.close()
    with pytest.raises(
        SharedStorageError, match=r"AGENTGYM_SHARED_STORAGE.*file:///no/such/folder"
    ):
        module.RayCluster(cluster.address, tmp_path, "file:///no/such/folder")
    victim = next(iter(cluster.worker_nodes))
    monkeypatch.setattr(
        module, "check_node", elsewhere_on(victim.node_id, f"file://{tmp_path}/elsewhere")
    )
    with pytest.raises(
        ProvisionError, match=rf"{victim.node_id[:8]}.*/elsewhere.*AGENTGYM_SHARED_STORAGE.*{url}"
    ):
        module._check_nodes(tmp_path, SharedStorage(url))
    monkeypatch.undo()


def test_request_above_the_nodes_resources_is_refused_with_both(
    cluster: Any, settings: InfraSettings
) -> None:
    from tasks.provision.ray_cluster import Placement, connected

    connected(settings)
    with pytest.raises(ProvisionError, match=r"the engine.*\{GPU: 8, CPU: 99\}.*\{CPU: 4"):
        Placement("the engine", [{"GPU": 8, "CPU": 99}], "PACK", 2.0)


def test_ray_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    done = run_here(
        "from configs.infrastructure import *; from tasks.provision.ray_cluster import *; "
        "connected(infra_settings())",
        "host:9",
    )
    assert re.search("AGENTGYM_RAY_ADDRESS.*host:9", done.stderr)


def run_here(code: str, address: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AGENTGYM_RAY_ADDRESS": address}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


OWNER = """
import os, signal
from configs.infrastructure import infra_settings
from tasks.provision.environment_servers import environment_replicas
with environment_replicas("textcraft", 2, infrastructure=infra_settings()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_on_the_nodes_end_with_a_killed_flow(cluster: Any) -> None:
    assert run_here(OWNER, cluster.address).returncode == -signal.SIGKILL
    eventually(lambda: not nodes_with(cluster, "environments serve"))


SMALL = {"algorithm__steps": 4, "curriculum__horizons": [2, 3], "checkpoint_every": 1}
KINDS = {
    "environment": ("environments serve",),
    "engine": ("api_server",),
    "trainer": ("trainer_main",),
}


def test_run_survives_lost_nodes_with_the_same_evaluation(
    cluster: Any, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name, value in {
        "ENGINE_SERVERS": 2,
        "ENVIRONMENT_SERVERS": 2,
        "TRAINER_START_SECONDS": 1500,
    }.items():
        monkeypatch.setenv(f"AGENTGYM_{name}", str(value))
    launch = tmp_path / "launch.yaml"
    launch.write_text("nodes: 2\nprocesses: 1\nfirst_node: ray\n")
    with monkeypatch.context() as on_ray:
        on_ray.setenv("AGENTGYM_RAY_ADDRESS", cluster.address)
        on_ray.setenv("AGENTGYM_LAUNCH", str(launch))
        on_ray.setenv("GLOO_SOCKET_IFNAME", "lo")
        run = start(there, policy, **SMALL)
        try:
            for reached, words in enumerate(KINDS.values(), start=1):
                wait_for(
                    lambda reached=reached: max(metrics(there), default=0) >= reached,
                    run,
                    PATIENCE_S,
                )
                with held_still(cluster):
                    eventually(
                        lambda: (
                            servers_answer(there)
                            and all(len(nodes_with(cluster, *each)) == 2 for each in KINDS.values())
                        )
                    )
                    killed = kill_and_replace(cluster, nodes_with(cluster, *words)[0], CPUS)
                eventually(lambda killed=killed: all(ended(process) for process in killed))
            shown = finish(run, there, PATIENCE_S)
        finally:
            end(run)
    assert re.search(r"after step \d+ from", shown)
    eventually(lambda: not any(nodes_with(cluster, *words) for words in KINDS.values()))
    assert not list(there.glob(".ray-*"))

    for name, value in {
        "TRAINER_PROCESSES": 2,
        "ENGINE_SERVERS": 1,
        "ENVIRONMENT_SERVERS": 1,
    }.items():
        monkeypatch.setenv(f"AGENTGYM_{name}", str(value))
    finish(start(here, policy, **SMALL), here, PATIENCE_S)
    assert sorted(set(metrics(there))) == [1, 2, 3, 4]
    for name in ("start", "phase-1", "phase-2"):
        ours, theirs = (folder(runs) / "evaluations" / f"{name}.json" for runs in (there, here))
        assert read_evaluation(ours).success == read_evaluation(theirs).success
        played, expected = (
            read_trajectories(path.with_suffix(".parquet")) for path in (ours, theirs)
        )
        same = [a.completion == b.completion for a, b in zip(played, expected, strict=True)]
        # The engines compute in float32, but not the same batches: a token whose draw lies on the
        # edge may be another.
        assert sum(same) >= len(same) - 1, name
