"""Runs of one Prefect server wait for each other's accelerators, whoever started the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from configs.infrastructure import InfraSettings
from flows.accelerators import accelerators_held
from flows.killed_flow_runs import SERVER_OF_THESE_RUNS
from tasks.provision.accelerators import LIMIT

COMPOSE, OWN = "http://prefect-server:4200/api", "http://127.0.0.1:9999/api"


@pytest.mark.parametrize(("server", "held"), [(COMPOSE, [LIMIT]), (OWN, []), ("", [])])
def test_a_run_waits_unless_the_server_is_its_own(server: str, held: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    @contextmanager
    def concurrency(name: str, **_: Any) -> Iterator[None]:
        asked.append(name)
        yield

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.setenv(SERVER_OF_THESE_RUNS, OWN)
    with accelerators_held(InfraSettings(runs=tmp_path), lambda _: None):
        assert asked == held
