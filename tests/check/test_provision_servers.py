"""Tests of provisioned servers: replicas, restarts, ports, and no survivors of a run."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from flows import prefect_stand_in
from flows.prefect_stand_in import RunServer
from tasks.provision import local
from tasks.provision.environment_servers import environment_replicas
from tasks.provision.errors import (
    LifecycleError,
    RestartBudgetError,
    StartFailedError,
    StartTimeoutError,
)
from tasks.provision.local import LocalServer, answers, free_port
from tasks.provision.replica_set import ReplicaSet, local_replicas
from tests.support.counting_servers import ROOT, counting_command
from tests.support.processes import ended, local_server, wait_until

PATIENCE_S = 60.0


def listener(url: str) -> psutil.Process | None:
    """Return the descendant of this process that listens on the URL's port, or None."""
    for process in psutil.Process().children(recursive=True):
        try:
            if any(
                c.status == "LISTEN" and c.laddr.port == urlsplit(url).port
                for c in process.net_connections("tcp")
            ):
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def test_replicas_serve_during_the_block(tmp_path: Path) -> None:
    with environment_replicas("textcraft", 2, state_dir=tmp_path) as servers:
        assert len(set(servers.urls)) == 2
        assert all(answers(f"{url}/health") for url in servers.urls)
        assert all(
            local.FIRST_PORT <= (urlsplit(url).port or 0) <= local.LAST_PORT for url in servers.urls
        )
        processes = [listener(url) for url in servers.urls]
        servers.check()
    assert not any(answers(f"{url}/health") for url in servers.urls)
    assert not any(process and process.is_running() for process in processes)
    assert list(tmp_path.glob("*.json")) == []


def test_dead_replica_restarts_on_its_port_and_is_counted(tmp_path: Path) -> None:
    with local_replicas(
        "counting", [counting_command("counting")] * 2, state_dir=tmp_path
    ) as servers:
        victim = listener(servers.urls[0])
        other = listener(servers.urls[1])
        assert victim is not None
        victim.kill()
        wait_until(lambda: listener(servers.urls[0]) not in (None, victim))
        wait_until(lambda: answers(f"{servers.urls[0]}/health"))
        assert servers.restarts == 1
        assert listener(servers.urls[1]) == other
        servers.check()


class DyingServer:
    """A server that dies at once. Its first `failures` restarts fail because the disk is full."""

    name, url = "dying", "http://127.0.0.1:1"

    def __init__(self, failures: int) -> None:
        self.failures, self.starts, self.lives = failures, 0, False

    def start(self) -> None:
        self.starts += 1
        if 1 < self.starts <= 1 + self.failures:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lives = self.starts > 1

    def alive(self) -> bool:
        return self.lives

    def end(self, grace_s: float = 1.0) -> None:
        self.lives = False

    def log_tail(self, lines: int = 30) -> str:
        return "full"


def test_a_replica_is_restarted_until_a_full_disk_has_room_again() -> None:
    recovers, stays = DyingServer(2), DyingServer(100)
    with ReplicaSet([recovers]):
        wait_until(lambda: recovers.lives)
    with ReplicaSet([stays], restart_budget=3) as replicas:
        wait_until(lambda: replicas._failure is not None)
        with pytest.raises(RestartBudgetError, match="full"):
            replicas.check()


def test_a_commands_own_prefect_server_is_restarted_until_a_full_disk_has_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefect_stand_in, "CHECK_S", 0.01)
    server: Any = DyingServer(2)
    server.start()
    kept = RunServer(server, server.url, lambda: not server.alive())
    wait_until(lambda: server.lives or not kept._thread.is_alive())
    assert server.lives
    kept.close()


def test_check_raises_after_the_restart_budget(tmp_path: Path) -> None:
    with local_replicas(
        "counting", [counting_command("counting")], state_dir=tmp_path, restart_budget=1
    ) as servers:
        for _ in range(2):
            victim = listener(servers.urls[0])
            assert victim is not None
            victim.kill()
            others = (None, victim)
            wait_until(
                lambda others=others: (
                    servers._failure is not None or listener(servers.urls[0]) not in others
                )
            )
            wait_until(
                lambda: servers._failure is not None or answers(f"{servers.urls[0]}/health")
            )  # so that its log has a line
        with pytest.raises(RestartBudgetError, match="serving"):
            servers.check()
        assert servers.restarts == 1


def test_unknown_world_fails_with_the_servers_log(tmp_path: Path) -> None:
    with pytest.raises(StartFailedError, match="'chess'"):
        environment_replicas("chess", 2, state_dir=tmp_path).__enter__()
    assert list(tmp_path.glob("*.json")) == []


def test_unhealthy_server_is_ended(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import time; print('warming up', flush=True); time.sleep(600)",
    ]
    server = LocalServer("slow", command, state_dir=tmp_path, start_deadline_s=0.5)
    with pytest.raises(StartTimeoutError):
        server.start()
    assert not server.alive()


def test_port_taken_at_the_last_moment_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as squatter:
        taken = squatter.getsockname()[1]
        ports = iter([taken, taken])
        monkeypatch.setattr(local, "free_port", lambda host: next(ports, None) or free_port(host))
        with local_server("counting", counting_command("counting"), state_dir=tmp_path) as server:
            assert urlsplit(server.url).port != taken
            assert answers(f"{server.url}/health")


def test_answer_of_a_foreign_process_on_the_port_is_ignored(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}"]
    with local_server(
        "stranger", command, health_path="/", state_dir=tmp_path, cwd=tmp_path
    ) as stranger:
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        server = LocalServer(
            "ours",
            sleeper,
            health_path="/",
            state_dir=tmp_path,
            port=urlsplit(stranger.url).port,
            start_deadline_s=0.5,
        )
        with pytest.raises(StartTimeoutError):
            server.start()


def test_an_ended_server_cannot_be_started(tmp_path: Path) -> None:
    server = LocalServer("counting", counting_command("counting"), state_dir=tmp_path)
    server.end()
    with pytest.raises(LifecycleError):
        server.start()


OWNER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tasks.provision.environment_servers import environment_replicas
with environment_replicas("textcraft", 2, state_dir=Path({state_dir!r})) as servers:
    print(*servers.urls, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_server_survives_the_run(tmp_path: Path, how: signal.Signals) -> None:
    code = OWNER.format(root=str(ROOT), state_dir=str(tmp_path))
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert run.stdout is not None
    urls = run.stdout.readline().split()
    family = psutil.Process(run.pid).children(recursive=True)
    assert len(family) == 4
    run.send_signal(how)
    run.wait(PATIENCE_S)
    wait_until(lambda: all(ended(member) for member in family))
    assert not any(answers(f"{url}/health") for url in urls)
