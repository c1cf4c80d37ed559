"""Jobs that are cancelled, retried, signalled and killed in a seeded order always end; the long form is tests/soaks/drill.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.drill import Drill, make_deployment
from tests.support.running_services import services_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_jobs_end_and_leave_one_state_whatever_happens_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    runs = tmp_path / "runs"
    with services_up(runs):
        deployment = make_deployment(runs)
        for seed in range(3):
            Drill(runs, deployment, random.Random(seed)).go(operations=5)
