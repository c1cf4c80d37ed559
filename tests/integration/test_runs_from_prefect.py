"""What Prefect's form and a run's own state say of a wrong value. Whole runs: `tests/soaks/runs_from_prefect.py`."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.provision.services import mlflow_login
from tests.support.running_services import ask, command, deployment_id, ended_run

pytestmark = pytest.mark.timeout(1800)  # a start takes 15 s, and many times that on a machine under load


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("operated") / "runs"
    up = command(folder, "up")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        with pytest.MonkeyPatch.context() as environment:
            for name, value in mlflow_login(folder).items():
                environment.setenv(name, value)
            yield folder
    finally:
        command(folder, "down")


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters", [{"recipe": "no-such-recipe"}, {"changes": {"steps": 0}}, {"changes": {"world": "no-world"}}, {"changes": {"step": 3}}]
)
def test_what_the_form_does_not_allow_makes_no_run(runs: Path, parameters: dict[str, Any]) -> None:
    train = deployment_id(runs, "train")
    its_runs = {"deployments": {"id": {"any_": [train]}}}  # the schedules of others make theirs
    before = ask(runs, "flow_runs/count", its_runs)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(runs, f"deployments/{train}/create_flow_run", {"parameters": parameters})
    assert refused.value.code == 409
    assert ask(runs, "flow_runs/count", its_runs) == before


@pytest.mark.slow
def test_worker_runs_what_is_triggered_through_the_api(runs: Path) -> None:
    """What the form cannot know to be wrong is the state's message of a run that has started nothing."""
    wrong = {"parameters": {"changes": {"evaluation_tasks": "wood-tset"}}, "state": {"type": "SCHEDULED"}}
    run = ask(runs, f"deployments/{deployment_id(runs, 'train')}/create_flow_run", wrong)
    ended = ended_run(runs, run["id"])
    assert ended["state_type"] == "FAILED"
    assert "evaluation.tasks: textcraft has no task list 'wood-tset'; did you mean 'wood-test'?" in ended["state"]["message"]
    assert list(runs.glob("quickstart-*")) == []
