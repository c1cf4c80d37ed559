"""Tests that the ports of a live run refuse other users and web pages of other origins."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.token import VARIABLE as ENVIRONMENT_TOKEN
from tasks.inference.token_guard import VARIABLE as ENGINE_TOKEN
from tasks.tracking.step_metrics_file import read_steps
from tests.support import small_runs
from tests.support.strangers import (
    FIRST_ANSWER_S,
    LONGEST_ANSWER_S,
    AttackSurface,
    answers,
    as_nobody,
    bytes_answered,
    opened,
    surface_of,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user"),
]

HTTP = ("environments serve", "vllm.entrypoints", "prefect_app:one_run")
"""Parts of the commands of HTTP servers."""
STEPS = 3000
"""More steps than the run takes during the tests."""
OPEN_TO_ALL = re.compile(r"user GET (/health|/api/health)")
"""Health checks reveal only that a server is running."""


class Touch:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


def attacks(folder: Path) -> list[tuple[str, str, Any]]:
    """Return requests that read, change weights or state, or write a file into the folder."""
    return [
        ("GET", "/", None),
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
        ("GET", "/docs", None),
        ("GET", "/redoc", None),
        # vLLM
        ("GET", "/v1/models", None),
        ("GET", "/weight_info", None),
        ("POST", "/v1/completions", {"model": "policy", "prompt": [1], "max_tokens": 1}),
        (
            "POST",
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
        ),
        (
            "POST",
            "/collective_rpc",
            {"method": "save_sharded_state", "kwargs": {"path": str(folder / "written")}},
        ),
        ("POST", "/update_weight_version", {"new_version": "planted"}),
        ("POST", "/init_weight_transfer_engine", {"init_info": {}}),
        ("POST", "/pause?mode=abort", {}),
        ("POST", "/sleep", {}),
        # environment servers
        ("GET", "/v1/world", None),
        ("GET", "/v1/tasks?split=test", None),
        ("POST", "/v1/create", [{}]),
        ("POST", "/create", {}),
        # Prefect
        ("GET", "/api/health", None),
        ("GET", "/api/admin/settings", None),
        ("POST", "/api/flow_runs/filter", {}),
        ("POST", "/api/flows/", {"name": "planted"}),
        ("POST", "/api/admin/database/clear", {"confirm": True}),
    ]


@pytest.fixture(scope="module")
def runs(
    policy: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield a run after its second step, and its runs folder.

    The run has a vLLM server and two trainer processes.
    """
    folder = tmp_path_factory.mktemp("ports") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_ENGINE_SERVERS", "1")
        patch.setenv("AGENTGYM_TRAINER_PROCESSES", "2")
        run = small_runs.start(
            folder,
            policy,
            algorithm__steps=STEPS,
            checkpoint_every=STEPS,
            curriculum__every=STEPS // 2,
        )
    try:
        small_runs.wait_for(lambda: len(small_runs.metrics(folder)) >= 2, run)
        yield run, folder
    finally:
        small_runs.end(run)


@pytest.fixture(scope="module")
def surface(runs: tuple[subprocess.Popen[bytes], Path]) -> AttackSurface:
    return surface_of(small_runs.family(runs[0].pid))


def test_only_known_servers_listen_and_only_on_loopback(surface: AttackSurface) -> None:
    assert {address for address, _, _ in surface.ports} == {"127.0.0.1"}
    known = (
        "environments serve",
        "vllm.entrypoints",
        "VLLM::EngineCore",
        "prefect_app:one_run",
        "trainer_main",
    )
    for kind in known:
        assert any(kind in command for _, _, command in surface.ports), kind
    assert all(any(kind in command for kind in known) for _, _, command in surface.ports), (
        surface.ports
    )


def test_no_port_serves_another_user_or_a_web_page(surface: AttackSurface, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    served, attacked, requests = [], set[str](), attacks(tmp_path)
    for _, port, command in surface.ports:
        kinds = {kind for kind in HTTP if kind in command}
        timeout = LONGEST_ANSWER_S if kinds else FIRST_ANSWER_S
        found = as_nobody(answers, port, requests, timeout)
        if len(found) == 3 * len(requests):
            attacked |= kinds
        for request, status, headers in found:
            if status < 400 and not OPEN_TO_ALL.fullmatch(request):
                served.append((command, request, status))
            assert "access-control-allow-origin" not in headers, (command, request)
    assert not served
    assert attacked == set(HTTP)
    assert not list(tmp_path.iterdir())


def test_garbage_bytes_are_not_answered_or_executed(surface: AttackSurface, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    payload = pickle.dumps(Touch(tmp_path / "ran"))
    for _, port, command in surface.ports:
        if (
            "trainer_main" in command or "EngineCore" in command
        ):  # gloo first reads an eight-byte number
            for sent in (
                payload,
                b"\0" * 8 + payload,
                (1).to_bytes(8, "little") + payload,
                b"\xff" * 4096,
            ):
                assert as_nobody(bytes_answered, port, sent) == b"", command
    assert not list(tmp_path.iterdir())


def test_unix_sockets_refuse_other_users(surface: AttackSurface) -> None:
    assert surface.sockets
    assert as_nobody(opened, surface.sockets) == []


def test_tokens_are_hidden_from_command_lines_and_other_users(
    runs: tuple[subprocess.Popen[bytes], Path],
) -> None:
    family = small_runs.family(runs[0].pid)
    (server,) = [
        p
        for p in family
        if "environments serve" in " ".join(p.cmdline())
        and "subreaper" not in " ".join(p.cmdline())
    ]
    (engine,) = [
        p
        for p in family
        if "-m vllm.entrypoints" in " ".join(p.cmdline())
        and "subreaper" not in " ".join(p.cmdline())
    ]
    tokens = [server.environ()[ENVIRONMENT_TOKEN], engine.environ()[ENGINE_TOKEN]]
    assert all(len(token) >= 32 for token in tokens)
    for process in family:
        assert not [token for token in tokens if token in " ".join(process.cmdline())], process
    assert as_nobody(_read, [f"/proc/{process.pid}/environ" for process in family]) == []


def test_run_continues_with_its_own_weights(runs: tuple[subprocess.Popen[bytes], Path]) -> None:
    run, folder = runs
    done = len(small_runs.metrics(folder))
    small_runs.wait_for(lambda: len(small_runs.metrics(folder)) >= done + 3, run)
    steps = read_steps(small_runs.folder(folder) / "metrics.jsonl")
    assert max(step["update/logp_gap_mean"] for step in steps.values()) < 1e-3
    assert all(step["rollout/failed"] == 0 for step in steps.values())


def _read(files: list[str]) -> list[str]:
    found = []
    for file in files:
        try:
            found.append(Path(file).read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found
