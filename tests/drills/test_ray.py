"""Tests of a run on a simulated Ray cluster of three nodes, some of which are killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.infrastructure import InfraSettings
from environments.address import present_url
from environments.client import EnvironmentClient
from environments.errors import SessionLostError
from tasks.evaluation.benchmark import read_evaluation
from tasks.provision.errors import (
    ProvisionError,
    RestartBudgetError,
    StartFailedError,
    StartTimeoutError,
)
from tasks.provision.local import answers
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.processes import ended, wait_until
from tests.support.ray_nodes import (
    LOOPBACK,
    commands_on,
    kill_and_replace,
    nodes_with,
    ray_cluster,
    servers_answer,
)
from tests.support.small_runs import ROOT, end, find, finish, folder, metrics, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CPUS = 4
PATIENCE_S = 1200.0
"""Long enough for a busy machine. No test asserts on time."""


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
            wait_until(lambda: all(ended(process) for process in killed))

    with environment_replicas("textcraft", 2, infrastructure=settings) as servers:
        assert len(nodes_with(cluster, "environments serve")) == 2
        asyncio.run(play(servers.urls))
        servers.check()
    wait_until(lambda: not nodes_with(cluster, "environments serve"))


def test_node_without_the_runs_folder_is_named(
    cluster: Any, settings: InfraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.provision import ray_cluster as module
    from tests.support.blind_node import check_node_unmounted_on

    module.connected(settings)
    victim = next(iter(cluster.worker_nodes))
    monkeypatch.setattr(module, "check_node", check_node_unmounted_on(victim.node_id))
    with pytest.raises(ProvisionError, match=rf"{victim.node_id[:8]}.*AGENTGYM_RUNS"):
        module._check_nodes(tmp_path)
    monkeypatch.undo()


def test_request_above_the_nodes_resources_is_refused_and_names_both(
    settings: InfraSettings, tmp_path: Path
) -> None:
    from tasks.provision.environment_servers import environment_replicas

    launch = tmp_path / "launch.yaml"
    launch.write_text("environment: {cpus: 99}")
    small = settings.model_copy(update={"launch": str(launch), "trainer_start_seconds": 1})
    with (
        pytest.raises(StartTimeoutError, match=r"textcraft-0.*99.*'CPU': 4"),
        environment_replicas("textcraft", 1, infrastructure=small, start_deadline_s=1.0),
    ):
        pass


def test_failed_server_start_raises_with_the_log(settings: InfraSettings) -> None:
    from tasks.provision.environment_servers import environment_replicas

    with (
        pytest.raises(StartFailedError, match="'chess'"),
        environment_replicas("chess", 1, infrastructure=settings),
    ):
        pass


def test_check_raises_after_the_last_restart(
    cluster: Any, settings: InfraSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.provision import ray_servers
    from tasks.provision.environment_servers import environment_replicas

    monkeypatch.setattr(ray_servers, "RESTARTS", 1)

    def serving() -> list[psutil.Process]:
        return [each for node in cluster.worker_nodes for each in commands_on(node)]

    with environment_replicas("textcraft", 1, infrastructure=settings) as servers:
        for _ in range(2):
            wait_until(lambda: answers(f"{present_url(servers.urls[0])}/health"))
            (server,) = serving()
            servers.check()
            server.kill()
            wait_until(lambda server=server: ended(server))
        wait_until(lambda: raised_by(servers.check))
        with pytest.raises(RestartBudgetError, match="textcraft-0"):
            servers.check()


def test_ray_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    done = run_here(
        "from configs.infrastructure import *; from tasks.provision.ray_cluster import *; "
        "connected(infra_settings())",
        "host:9",
    )
    assert re.search("AGENTGYM_RAY_ADDRESS.*host:9", done.stderr)


def raised_by(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except ProvisionError as fault:
        return fault
    return None


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


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
    wait_until(lambda: not nodes_with(cluster, "environments serve"))


SMALL = {"algorithm__steps": 4, "curriculum__horizons": [2, 3], "checkpoint_every": 1}
KINDS = {"environment": ("environments serve",), "engine": ("api_server",)}


def test_run_survives_lost_nodes_with_the_same_evaluation(
    cluster: Any,
    policy: str,
    tmp_path: Path,
    prefect_api: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name, value in {
        "ENGINE_SERVERS": 2,
        "ENVIRONMENT_SERVERS": 2,
        "TRAINER_START_SECONDS": 1500,
    }.items():
        monkeypatch.setenv(f"AGENTGYM_{name}", str(value))
    with monkeypatch.context() as on_ray:
        on_ray.setenv("AGENTGYM_RAY_ADDRESS", cluster.address)
        run = start(there, policy, prefect=prefect_api, **SMALL)
        try:
            for reached, words in enumerate(KINDS.values(), start=1):
                wait_for(
                    lambda reached=reached: max(metrics(there), default=0) >= reached,
                    run,
                    PATIENCE_S,
                )
                trainer = find(run, "forked_launch")
                # Otherwise the run would end before the lost servers are back.
                with stopped([trainer, *trainer.children(recursive=True)]):
                    # Ray may restart both servers of a kind on one node.
                    wait_until(lambda: servers_answer(there))
                    killed = kill_and_replace(cluster, nodes_with(cluster, *words)[0], CPUS)
                wait_until(lambda killed=killed: all(ended(process) for process in killed))
            finish(run, there, PATIENCE_S)
        finally:
            end(run)
    wait_until(lambda: not any(nodes_with(cluster, *words) for words in KINDS.values()))
    assert not list(there.glob(".ray-*"))

    for name, value in {
        "ENGINE_SERVERS": 1,
        "ENVIRONMENT_SERVERS": 1,
    }.items():
        monkeypatch.setenv(f"AGENTGYM_{name}", str(value))
    finish(start(here, policy, prefect=prefect_api, **SMALL), here, PATIENCE_S)
    assert sorted(set(metrics(there))) == [1, 2, 3, 4]
    for name in ("start", "phase-1", "phase-2"):
        ours, theirs = (folder(runs) / "evaluations" / f"{name}.json" for runs in (there, here))
        assert read_evaluation(ours).success == read_evaluation(theirs).success
        played, expected = (
            read_trajectories(path.with_suffix(".parquet")) for path in (ours, theirs)
        )
        same = [a.completion == b.completion for a, b in zip(played, expected, strict=True)]
        # The engines compute in float32 but with different batches, so a borderline draw may give
        # another token.
        assert sum(same) >= len(same) - 1, name
