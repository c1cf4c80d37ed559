"""Tests of `make up` and `make down` with the real Prefect, MLflow and worker."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from playwright.sync_api import Browser

from configs.evaluation_grid import EvaluationGrid
from configs.model_folder import write_recipe
from configs.recipe import load_recipe
from tasks.provision import supervisor
from tasks.provision.errors import PortTakenError
from tasks.provision.local import answers
from tasks.provision.prefect_api import PrefectApi
from tasks.provision.prefect_set_up import set_up
from tasks.provision.process import ROOT
from tasks.provision.services import addresses, login, read
from tests.support.chromium import needs_chromium
from tests.support.foreign_pages import attempts
from tests.support.processes import command_line, wait_until
from tests.support.running_services import (
    addresses_of,
    ask,
    command,
    deployment_id,
    ended_run,
    processes,
    running,
    services_up,
)
from tests.support.tiny_policy import build_tiny_policy
from tests.support.viewer_login import open_with_login


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("services") / "runs"
    often = {
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "15",
    }
    with services_up(
        folder, **often
    ) as printed:  # by default, schedules wait a minute, and old runs are deleted once an hour
        found = addresses_of(folder)
        for value in (found.prefect_ui_url, found.mlflow_tracking_uri, login(folder)):
            assert value in printed
        yield folder


@pytest.mark.slow
def test_both_servers_answer_on_loopback_only(runs: Path) -> None:
    found = addresses_of(runs)
    assert answers(found.prefect_ui_url)
    assert answers(f"{found.mlflow_tracking_uri}/health")
    listening = [
        connection.laddr.ip
        for process in processes(runs)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.slow
def test_deployments_are_registered_with_schedule_and_limit(runs: Path) -> None:
    deployments = {
        deployment["name"]: deployment for deployment in ask(runs, "deployments/filter", {})
    }
    assert set(deployments) == {"train", "evaluate", "study", "nightly", "collect"}
    assert {deployment["work_pool_name"] for deployment in deployments.values()} == {
        supervisor.POOL
    }
    assert deployments["train"]["schedules"] == []
    (schedule,) = deployments["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"], schedule["active"]) == (
        "0 2 * * *",
        "UTC",
        True,
    )
    assert deployments["nightly"]["global_concurrency_limit"]["limit"] == 1
    assert deployments["nightly"]["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert {"recipe", "changes", "overrides"} == set(
        deployments["train"]["parameter_openapi_schema"]["properties"]
    )


@pytest.mark.slow
def test_deployments_use_the_named_pool_and_docker_runs_cannot_change_their_container(
    runs: Path,
) -> None:
    template = json.loads((ROOT / "tasks" / "provision" / "docker_pool.json").read_text())
    ask(
        runs,
        "work_pools/",
        {"name": "agentgym-docker", "type": "docker", "base_job_template": template},
    )
    for pool in ("agentgym-docker", supervisor.POOL):
        settings = {
            "PREFECT_API_URL": addresses_of(runs).prefect_api_url,
            "PREFECT_API_AUTH_STRING": login(runs),
            "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
            "PREFECT_DEFAULT_WORK_POOL_NAME": pool,
        }
        deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        subprocess.run(
            deploy,
            cwd=ROOT,
            env=os.environ | settings,
            check=True,
            capture_output=True,
            timeout=600,
        )
        assert {
            deployment["work_pool_name"] for deployment in ask(runs, "deployments/filter", {})
        } == {pool}
        for variables in (
            {"volumes": ["/:/host"]},
            {"privileged": True},
            {"image": "other"},
            {"env": {"PYTHONPATH": "/x"}},
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(
                    runs,
                    f"deployments/{deployment_id(runs, 'train')}/create_flow_run",
                    {"job_variables": variables},
                )
            assert refused.value.code == 422


@pytest.mark.slow
def test_flow_runs_older_than_90_days_are_deleted_with_their_logs(runs: Path) -> None:
    train = deployment_id(runs, "train")
    wanted = {
        "parameters": {"overrides": {"no.such": 1}},
        "state": {"type": "SCHEDULED"},
    }  # it fails immediately and logs an error
    old, new = (ask(runs, f"deployments/{train}/create_flow_run", wanted)["id"] for _ in range(2))
    for run in (old, new):
        ended_run(runs, run)

    def logs(run: str) -> Any:
        return ask(runs, "logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})

    wait_until(lambda: bool(logs(old) and logs(new)))
    with (
        closing(sqlite3.connect(runs / "prefect" / "prefect.db", timeout=60)) as database,
        database,
    ):
        database.execute(
            "UPDATE flow_run SET end_time = datetime(end_time, '-91 days') WHERE id = ?", [old]
        )
    wait_until(lambda: not logs(old))
    found = ask(runs, "flow_runs/filter", {"flow_runs": {"id": {"any_": [old, new]}}})
    assert [run["id"] for run in found] == [new]
    assert logs(new)


@pytest.mark.slow
def test_checkpoint_of_the_evaluation_form_is_played_in_its_own_format(
    runs: Path, tmp_path: Path
) -> None:
    checkpoint = build_tiny_policy(tmp_path / "step-000002")
    recipe = load_recipe("textcraft", {"rollout.turn_tokens": 9})
    write_recipe(Path(checkpoint), recipe)
    form = EvaluationGrid.model_validate(
        {
            "environment": "textcraft",
            "source": {"kind": "model", "model": checkpoint},
            "tasks": ["wood-test"],
            "n_tasks": 1,
            "horizons": [2],
            "rollout": {"engine": "transformers"},
        }
    )
    wanted = {  # like the form, with all default values
        "parameters": {"grid": form.model_dump(mode="json")},
        "state": {"type": "SCHEDULED"},
    }
    run = ask(runs, f"deployments/{deployment_id(runs, 'evaluate')}/create_flow_run", wanted)
    assert ended_run(runs, run["id"])["state_name"] == "Completed"
    (settings,) = (runs / "evaluated").glob("*/settings.json")
    played = json.loads(settings.read_text(encoding="utf-8"))
    assert played["source"]["action_format"] == recipe.policy.action_format != "react"
    assert played["rollout"]["turn_tokens"] == 9


@pytest.mark.slow
def test_automations_are_registered_once(runs: Path) -> None:
    before = ask(runs, "automations/filter", {})
    set_up(
        PrefectApi(addresses_of(runs).prefect_api_url, login(runs)), supervisor.POOL
    )  # like the next `make up`
    automations = ask(runs, "automations/filter", {})
    assert automations == before  # a changed automation would forget the runs it waits for
    assert sorted(each["name"] for each in automations) == [
        "pause the schedule of a collapsed run",
        "resume a crashed run once",
        "zombie runs",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {"command": "id"},
        {"env": {"PYTHONPATH": "/x"}},
        {"env.LD_PRELOAD": "/x"},
        {"working_dir": "/x"},
    ],
)
def test_run_that_changes_the_workers_command_is_refused(
    runs: Path, variables: dict[str, Any]
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(
            runs,
            f"deployments/{deployment_id(runs, 'train')}/create_flow_run",
            {"job_variables": variables},
        )
    assert refused.value.code == 422
    assert b"Additional properties are not allowed" in refused.value.read()


@pytest.mark.slow
def test_other_job_variables_have_no_effect(runs: Path, tmp_path: Path) -> None:
    train = deployment_id(runs, "train")
    variables = {
        "command": f"touch {tmp_path}/executed",
        "env": {"AGENTGYM_NONSENSE": "1"},
        "working_dir": str(tmp_path),
    }
    ask(runs, f"deployments/{train}", {"job_variables": variables}, "PATCH")
    deployment = ask(runs, "deployments/filter", {"deployments": {"id": {"any_": [train]}}})[0]
    by_hand = {
        "flow_id": deployment["flow_id"],
        "deployment_id": train,
        "work_pool_name": supervisor.POOL,
        "job_variables": variables,
    }
    run = ask(
        runs,
        "flow_runs/",
        {**by_hand, "parameters": {"recipe": "no-such-recipe"}, "state": {"type": "SCHEDULED"}},
    )
    ended = ended_run(runs, run["id"])
    ask(runs, f"deployments/{train}", {"job_variables": {}}, "PATCH")
    assert "no-such-recipe" in ended["state"]["message"]
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"recipe": "no-such-recipe"},
        {"changes": {"steps": 0}},
        {"changes": {"world": "no-world"}},
        {"changes": {"step": 3}},
    ],
)
def test_invalid_form_input_creates_no_run(runs: Path, parameters: dict[str, Any]) -> None:
    train = deployment_id(runs, "train")
    of_train = {"deployments": {"id": {"any_": [train]}}}  # other schedules create runs, too
    before = ask(runs, "flow_runs/count", of_train)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(runs, f"deployments/{train}/create_flow_run", {"parameters": parameters})
    assert refused.value.code == 409
    assert ask(runs, "flow_runs/count", of_train) == before


@pytest.mark.slow
def test_worker_runs_a_scheduled_flow_with_its_parameters(runs: Path) -> None:
    """Schedule a run with an invalid field that only the flow detects.

    The run fails with a message before it starts anything. `tests/soaks/runs_from_prefect.py` tests
    whole runs and nights that schedules start.
    """
    train = deployment_id(runs, "train")
    begun = {
        "flow_runs": {
            "deployment_id": {"any_": [train]},
            "state": {"type": {"not_any_": ["SCHEDULED"]}},
        }
    }
    before = {run["id"] for run in ask(runs, "flow_runs/filter", begun)}
    wrong = {"changes": {"evaluation_tasks": "islands-tset"}}
    often = {
        "schedule": {"interval": 30, "anchor_date": "2026-01-01T00:00:00Z"},
        "active": True,
        "parameters": wrong,
    }
    (made,) = ask(runs, f"deployments/{train}/schedules", [often])  # type: ignore[arg-type]
    wait_until(lambda: {run["id"] for run in ask(runs, "flow_runs/filter", begun)} > before)
    ask(runs, f"deployments/{train}/schedules/{made['id']}", {}, "DELETE")
    fired = next(run for run in ask(runs, "flow_runs/filter", begun) if run["id"] not in before)
    ended = ended_run(runs, fired["id"])
    assert fired["auto_scheduled"]
    assert fired["created_by"]["type"] == "SCHEDULE"
    assert ended["state_type"] == "FAILED"
    assert "evaluation.tasks: " in ended["state"]["message"]
    assert "'islands-test'" in ended["state"]["message"]
    assert list(runs.glob("quickstart-*")) == []


@needs_chromium
@pytest.mark.slow
def test_link_into_prefect_asks_for_the_login_once(runs: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(
        f"{addresses_of(runs).prefect_ui_url}/deployments/deployment/{deployment_id(runs, 'nightly')}"
    )
    page.get_by_placeholder("admin:pass").fill(login(runs))
    page.keyboard.press("Enter")
    page.get_by_text("nightly").first.wait_for()
    page.wait_for_url("**/deployments/deployment/*")
    page.reload()
    page.get_by_text("nightly").first.wait_for()
    page.close()


@needs_chromium
@pytest.mark.slow
def test_pages_of_other_origins_are_refused(runs: Path, tmp_path: Path, browser: Browser) -> None:
    found = addresses(runs)
    assert found is not None
    run_it = {
        "parameters": {"recipe": "quickstart"},
        "job_variables": {"command": f"touch {tmp_path}/executed"},
    }
    url = f"{found.prefect_api_url}/deployments/{deployment_id(runs, 'train')}/create_flow_run"
    experiment = f"{found.mlflow_tracking_uri}/api/2.0/mlflow/experiments/create"
    before = ask(runs, "flow_runs/count", {})
    for seen in [
        *attempts(browser, url, json.dumps(run_it)),
        *attempts(browser, experiment, json.dumps({"name": "planted"})),
    ]:
        assert len(seen.statuses) >= 3, seen
        assert set(seen.statuses) <= {400, 401, 403}, seen
        assert seen.read == [], seen
    assert ask(runs, "flow_runs/count", {}) == before
    assert not (tmp_path / "executed").exists()
    assert mlflow.MlflowClient(found.mlflow_tracking_uri).get_experiment_by_name("planted") is None


@pytest.mark.slow
def test_requests_without_login_are_refused(runs: Path) -> None:
    found = addresses(runs)
    assert found is not None
    for url in (
        f"{found.prefect_api_url}/flows/",
        f"{found.prefect_api_url}/csrf-token?client=a",
        f"{found.mlflow_tracking_uri}/",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=60)
        assert refused.value.code == 401
    assert oct(runs.stat().st_mode & 0o777) == "0o700"
    assert oct((runs / "services" / "login").stat().st_mode & 0o777) == "0o600"
    assert not [
        process
        for process in processes(runs)
        if login(runs).partition(":")[2] in " ".join(command_line(process))
    ]


@pytest.mark.slow
def test_pages_forbid_frames(runs: Path) -> None:
    found = addresses_of(runs)
    for url in (
        found.prefect_ui_url,
        f"{found.prefect_ui_url}/dashboard",
        f"{found.mlflow_tracking_uri}/",
        f"{found.viewer_url}/",
    ):
        with open_with_login(url, runs) as answer:
            frames = (
                answer.headers.get("X-Frame-Options", ""),
                answer.headers.get("Content-Security-Policy", ""),
            )
        assert frames[0] in ("DENY", "SAMEORIGIN") or "frame-ancestors 'none'" in frames[1], url


@pytest.mark.slow
def test_working_services_log_no_error(runs: Path) -> None:
    """Search the log after the worker has polled several times and carried out runs."""
    polls = set()

    def polled_often() -> bool:
        polls.update(
            queue["last_polled"]
            for queue in ask(runs, f"work_pools/{supervisor.POOL}/queues/filter", {})
        )
        return len(polls) > 3

    wait_until(polled_often)
    (log,) = (runs / "services").glob("prefect-server-*.log")
    assert not [
        line for line in log.read_text().splitlines() if re.search("locked|ERROR|Traceback", line)
    ]


@pytest.mark.slow
def test_second_up_finds_running_services(runs: Path) -> None:
    before = read(runs)
    again = command(runs, "up")
    assert again.returncode == 0
    assert read(runs) == before
    assert before is not None
    assert before.addresses is not None
    assert before.addresses.prefect_ui_url in again.stdout


@pytest.mark.slow
def test_killed_service_restarts_and_the_others_keep_running(runs: Path) -> None:
    before = read(runs)
    mlflow_server, prefect_server = running(runs, "mlflow"), running(runs, "prefect_app")
    assert mlflow_server
    assert prefect_server
    for process in mlflow_server:
        process.kill()
    assert command(runs, "up").returncode == 0
    assert read(runs) == before
    assert running(runs, "mlflow") != mlflow_server
    assert all(process.is_running() for process in prefect_server)


@pytest.mark.slow
def test_down_leaves_no_process(runs: Path) -> None:
    assert processes(runs)
    assert command(runs, "down").returncode == 0
    assert processes(runs) == []
    assert addresses(runs) is None
    assert command(runs, "down").returncode == 0


@pytest.mark.slow
def test_services_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    starting = subprocess.Popen(
        [sys.executable, "-m", "tasks.provision.supervisor"],
        cwd=ROOT, env={**os.environ, "AGENTGYM_RUNS": str(tmp_path)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    # The supervisor, two subreapers and two servers.
    wait_until(lambda: len(processes(tmp_path)) >= 5)
    starting.send_signal(signal.SIGKILL)
    starting.wait()
    wait_until(lambda: processes(tmp_path) == [])
    assert addresses(tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("is_still_taken", [True, False])
def test_port_taken_during_the_start_raises_port_taken_error(
    is_still_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = supervisor._Services(tmp_path)
    port = int(services.addresses.prefect_ui_url.rpartition(":")[2])
    if not is_still_taken:
        monkeypatch.setattr(
            supervisor, "is_free", lambda port: True
        )  # as if the other process ended after our start failed
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTakenError):
        services.start()
    assert processes(tmp_path) == []
