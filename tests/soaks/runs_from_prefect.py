"""Tests of runs started, watched, cancelled and resumed in Prefect's UI, and of scheduled nights.

    python -m pytest tests/soaks/runs_from_prefect.py

They take a quarter of an hour, most of which is waiting for schedules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from playwright.sync_api import Browser

from tasks.evaluation.nights import read_nights
from tasks.provision.services import login
from tasks.tracking.step_metrics_file import read_steps
from tests.support.chromium import needs_chromium
from tests.support.planted import PLANTED, RIGHT, WRONG, build_saying
from tests.support.processes import command_line, wait_until
from tests.support.running_services import (
    addresses_of,
    ask,
    deployment_id,
    ended_run,
    processes,
    services_up,
)
from tests.support.small_runs import SMALL
from tests.support.tiny_policy import build_tiny_policy


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("operated") / "runs"
    with services_up(folder):
        yield folder


@pytest.mark.slow
def test_scheduled_nights_promote_only_a_better_challenger(runs: Path, tmp_path: Path) -> None:
    found = addresses_of(runs)
    nightly = deployment_id(runs, "nightly")
    client = mlflow.MlflowClient(found.mlflow_tracking_uri)

    def night(date: str, word: str) -> dict[str, str]:
        """Run a night by a schedule that is due soon.

        Returns:
            The training seed of the version that each alias names.
        """
        policy = tmp_path / word
        parameters = {"night": date, "overrides": {**PLANTED, "policy.model": str(policy)}}
        if not policy.exists():
            build_saying(policy, word)
        before = {run["id"] for run in of_nightly()}
        # On a busy machine a slower scheduler would begin with tomorrow's run.
        for ahead_s in (60, 120, 240):
            due = datetime.now(UTC) + timedelta(seconds=ahead_s)
            soon = {"interval": timedelta(days=1).total_seconds(), "anchor_date": due.isoformat()}
            (made,) = ask(
                runs,
                f"deployments/{nightly}/schedules",
                [{"schedule": soon, "active": True, "parameters": parameters}],
            )  # type: ignore[arg-type]
            wait_until(
                lambda due=due: (
                    len(of_nightly()) > len(before)
                    or datetime.now(UTC) > due + timedelta(seconds=30)
                )
            )
            if len(of_nightly()) > len(before):
                break
            ask(runs, f"deployments/{nightly}/schedules/{made['id']}", {}, "DELETE")
        (fired,) = (run for run in of_nightly() if run["id"] not in before)
        ended = ended_run(runs, fired["id"])
        assert fired["auto_scheduled"]
        assert ended["state_name"] == "Completed", ended["state"]
        assert ended["name"] == f"night {date}, quickstart"
        named = {}
        for alias in ("champion", "challenger"):
            version = client.get_model_version_by_alias("planted", alias)
            named[alias] = client.get_run(
                client.get_run(version.run_id).data.tags["mlflow.parentRunId"]
            ).data.params["seeds.training"]
        return named

    def of_nightly() -> list[dict[str, Any]]:
        begun = {
            "deployment_id": {"any_": [nightly]},
            "state": {"type": {"not_any_": ["SCHEDULED"]}},
        }
        return list(ask(runs, "flow_runs/filter", {"flow_runs": begun}))

    assert night("2026-01-01", RIGHT) == {"champion": "20260101", "challenger": "20260101"}
    assert night("2026-01-02", WRONG) == {"champion": "20260101", "challenger": "20260102"}
    (worse,) = (
        folder
        for folder in runs.glob("planted-*")
        if "20260102" in (folder / "recipe.yaml").read_text()
    )
    version = next(
        v for v in client.search_model_versions("name='planted'") if worse.name in v.tags["folder"]
    )
    client.set_registered_model_alias("planted", "champion", version.version)  # as a user may do
    assert night("2026-01-04", RIGHT) == {"champion": "20260104", "challenger": "20260104"}

    nights, damaged = read_nights(runs / "nights" / "planted")
    assert damaged == []
    assert [each.verdict for each in nights] == ["first", "not better", "better"]
    assert nights[2].missed == ("2026-01-03",)
    table = next(
        each["data"] for each in ask(runs, "artifacts/latest/filter", {}) if each["key"] == "nights"
    )
    assert [row.split()[1] for row in table.splitlines() if row.startswith("| 2026")] == [
        "2026-01-04",
        "2026-01-03",
        "2026-01-02",
        "2026-01-01",
    ]
    newest = client.get_model_version_by_alias("planted", "champion")
    parent = client.get_run(client.get_run(newest.run_id).data.tags["mlflow.parentRunId"])
    assert "nights.md" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert parent.data.metrics["nightly/difference"] == 1.0


@pytest.mark.slow
@needs_chromium
def test_run_started_from_the_form_completes_and_is_linked_in_every_ui(
    runs: Path, tmp_path: Path, browser: Browser
) -> None:
    found = addresses_of(runs)
    changes = {
        "policy": build_tiny_policy(tmp_path),
        "steps": 6,
        "horizons": [2, 3, 4],
        "seed": 3,
        "group_size": 4,
        "tasks_per_step": 3,
    }
    rest = {name: value for name, value in SMALL.items() if name.partition(".")[0] != "curriculum"}
    overrides = {
        name: value
        for name, value in rest.items()
        if name not in ("algorithm.steps", "rollout.group_size", "rollout.tasks_per_step")
    }
    wanted = {
        "parameters": {"recipe": "textcraft", "changes": changes, "overrides": overrides},
        "state": {"type": "SCHEDULED"},
    }
    run = ask(runs, f"deployments/{deployment_id(runs, 'train')}/create_flow_run", wanted)
    ended = ended_run(runs, run["id"])
    assert ended["state_name"] == "Completed", ended["state"]
    assert {"textcraft", "grpo", "training"} <= set(ended["tags"])

    flow_runs = ask(
        runs, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    )
    phases = sorted(
        each["name"]
        for each in flow_runs
        if each["name"].startswith("phase") and "horizon 1" not in each["name"]
    )
    assert phases == ["phase 1: horizon 2", "phase 2: horizon 3", "phase 3: horizon 4"]
    shown = {
        artifact["key"]: artifact
        for artifact in ask(runs, "artifacts/filter", {})
        if artifact["flow_run_id"] == run["id"]
    }
    assert set(shown) >= {"evaluation", "learning-curve", "mlflow", "viewer", "progress"}
    assert float(shown["progress"]["data"]) == 100.0

    client = mlflow.MlflowClient(found.mlflow_tracking_uri)
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    recorded = client.search_runs([experiment.experiment_id])
    assert len(recorded) == 4
    assert {run.info.status for run in recorded} == {"FINISHED"}
    (parent,) = (run for run in recorded if "mlflow.parentRunId" not in run.data.tags)
    assert len(client.get_metric_history(parent.info.run_id, "rollout/reward")) == 6
    assert "learning_curve.png" in {file.path for file in client.list_artifacts(parent.info.run_id)}

    (folder,) = runs.glob("small-*")
    user, _, password = login(runs).partition(":")
    context = browser.new_context(
        http_credentials={"username": user, "password": password},
        viewport={"width": 1400, "height": 1000},
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{found.viewer_url}/runs/{folder.name}")
    page.get_by_role("link", name="in MLflow").click()
    page.wait_for_url(f"**/#/experiments/{experiment.experiment_id}/runs/{parent.info.run_id}*")
    page.get_by_text(parent.info.run_name).first.wait_for()
    back = page.locator(
        f"a[href='{found.viewer_url}/runs/{folder.name}']"
    )  # in the run's description
    back.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "mlflow.png")
    if back.get_attribute("target") == "_blank":
        with context.expect_page() as opened:
            back.click()
        page = opened.value
    else:
        back.click()
    page.get_by_role("link", name="in Prefect").click()
    page.get_by_placeholder("admin:pass").fill(login(runs), timeout=120_000)
    page.keyboard.press("Enter")
    page.get_by_text(ended["name"]).first.wait_for(timeout=120_000)
    page.get_by_text("Artifacts", exact=True).first.click()
    page.get_by_text("learning-curve").first.wait_for(timeout=120_000)
    page.screenshot(path=tmp_path / "prefect.png")
    context.close()


def small_run(runs: Path, policy: str, seed: int) -> str:
    """Start a flow run with SMALL that is long enough to be disturbed, and return its id."""
    overrides = {
        **SMALL,
        "algorithm.steps": 60,
        "curriculum.every": 20,
        "policy.model": policy,
        "seeds.training": seed,
        "name": f"small{seed}",
    }
    wanted = {"parameters": {"overrides": overrides}, "state": {"type": "SCHEDULED"}}
    return str(
        ask(runs, f"deployments/{deployment_id(runs, 'train')}/create_flow_run", wanted)["id"]
    )


def steps_of(runs: Path, seed: int) -> list[int]:
    return [step for path in runs.glob(f"small{seed}-*/metrics.jsonl") for step in read_steps(path)]


def processes_of(runs: Path, run: str) -> list[psutil.Process]:
    """Return the process of a flow run and all processes that were started for it."""
    found = []
    for process in processes(runs):
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run:
                found.append(process)
    return found


def state_of(runs: Path, run: str) -> tuple[str, int]:
    (found,) = ask(runs, "flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return found["state_type"], found["run_count"]


@pytest.mark.slow
def test_cancelled_run_ends_every_process_and_continues_on_retry(runs: Path, policy: str) -> None:
    run = small_run(runs, policy, 5)
    wait_until(lambda: max(steps_of(runs, 5), default=0) >= 3)
    run_processes = processes_of(runs, run)
    assert len(run_processes) > 4
    ask(
        runs, f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}}
    )  # like the button of the page
    psutil.wait_procs(run_processes, 120)
    wait_until(lambda: state_of(runs, run)[0] == "CANCELLED")
    assert processes_of(runs, run) == []
    client = mlflow.MlflowClient(addresses_of(runs).mlflow_tracking_uri)
    experiment = client.get_experiment_by_name("small5")
    assert experiment is not None
    assert {each.info.status for each in client.search_runs([experiment.experiment_id])} == {
        "KILLED"
    }

    ask(
        runs,
        f"flow_runs/{run}/set_state",
        {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}},
    )  # like the button of the page
    wait_until(lambda: max(steps_of(runs, 5), default=0) >= 5)
    messages = [
        each["message"]
        for each in ask(runs, "logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
    ]
    assert [line for line in messages if re.match(r"Continuing after step \d+", line)], messages
    ask(runs, f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    wait_until(lambda: state_of(runs, run)[0] == "CANCELLED")


@pytest.mark.slow
def test_run_with_a_killed_process_is_resumed_once(runs: Path, policy: str) -> None:
    run = small_run(runs, policy, 6)
    for life in (1, 2):
        reached = max(steps_of(runs, 6), default=0) + 3
        wait_until(
            lambda reached=reached, life=life: (
                state_of(runs, run) == ("RUNNING", life)
                and max(steps_of(runs, 6), default=0) >= reached
            )
        )
        (flow,) = (
            each
            for each in processes_of(runs, run)
            if "prefect.engine" in " ".join(command_line(each))
        )
        run_processes = processes_of(runs, run)
        flow.kill()
        _, alive = psutil.wait_procs(run_processes, 60)
        assert alive == []
    wait_until(lambda: state_of(runs, run)[0] == "CRASHED")
    assert state_of(runs, run) == ("CRASHED", 2)
