"""The services of one machine: Prefect server, MLflow server, viewer and worker.

The worker runs triggered and scheduled flows. `up` starts a supervisor (supervisor.py) that
outlives the command and owns the four services; `down` ends it. runs/services.json records the
supervisor and the addresses. The record of a dead supervisor is ignored.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.infrastructure import SettingsError, infra_settings
from tasks.files import locked, read_json, replace_file
from tasks.provision.errors import ProvisionError
from tasks.provision.local import answers
from tasks.provision.private_files import private_folder, private_runs, stored_secret
from tasks.provision.process import ROOT, started_at

POLL_S = 0.1
START_DEADLINE_S = 1200.0


@dataclass(frozen=True)
class Addresses:
    """Addresses of this machine's services."""

    prefect_ui_url: str
    prefect_api_url: str
    mlflow_tracking_uri: str
    viewer_url: str


@dataclass(frozen=True)
class Record:
    """The supervisor's record: its process, and the addresses while all services are up."""

    pid: int
    started: int  # clock ticks after boot; distinguishes a reused pid
    addresses: Addresses | None


def record_path(runs: Path) -> Path:
    """Return the file of the supervisor's record."""
    return runs / "services.json"


def write(runs: Path, state: Record) -> None:
    """Write the record."""
    replace_file(record_path(runs), json.dumps(asdict(state)))


def read(runs: Path) -> Record | None:
    """Return the supervisor's record, or None if the file is damaged or the process is gone."""
    record = read_json(record_path(runs))
    try:
        found = Record(
            record["pid"],
            record["started"],
            Addresses(**record["addresses"]) if record["addresses"] else None,
        )
    except (KeyError, TypeError):
        return None
    return found if started_at(found.pid) == found.started else None


def login_file(runs: Path) -> Path:
    """Return the file of the login."""
    return runs / "services" / "login"


def new_login() -> str:
    """Make a login with a random password, as "user:password"."""
    return f"agentgym:{secrets.token_urlsafe(24)}"


def login(runs: Path) -> str:
    """Return the login of Prefect, MLflow and the viewer, as "user:password".

    The first call creates it. Anyone with this login can run code as this user.

    Raises:
        PrivacyError: Others could read it.
    """
    return stored_secret(login_file(runs), new_login)


def mlflow_login(runs: Path) -> dict[str, str]:
    """Return the login as environment variables for MLflow's clients and our MLflow server."""
    user, _, password = login(runs).partition(":")
    return {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}


def addresses(runs: Path) -> Addresses | None:
    """Return the addresses of this runs folder's services, or None if they are down."""
    state = read(runs)
    return None if state is None else state.addresses


def up(runs: Path) -> Addresses:
    """Start the services if they are down, and return when all of them answer.

    Raises:
        ProvisionError: A service did not start. The message holds the end of its log.
    """
    log = runs / "services" / "supervisor.log"
    private_folder(private_runs(runs) / "services")
    with locked(runs / "services" / "up.lock"):  # a concurrent call finds the services up
        if (found := _answering(runs)) is not None:
            return found
        supervisor, deadline = None, time.monotonic() + START_DEADLINE_S
        if read(runs) is None:
            with log.open("w") as output:
                supervisor = subprocess.Popen(
                    [sys.executable, "-m", "tasks.provision.supervisor"],
                    cwd=ROOT,
                    env={**os.environ, "AGENTGYM_RUNS": str(runs)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        try:
            with log.open() as lines:
                while (found := _answering(runs)) is None:
                    print(lines.read(), end="", flush=True)
                    ended = (
                        read(runs) is None if supervisor is None else supervisor.poll() is not None
                    )
                    if ended or time.monotonic() > deadline:
                        raise ProvisionError(
                            f"the services did not start. Last lines of {log}:\n{lines.read()}"
                        )
                    time.sleep(POLL_S)
                print(lines.read(), end="", flush=True)
        except BaseException:
            if supervisor is not None:
                supervisor.terminate()
                supervisor.wait()
            raise
    return found


def _answering(runs: Path) -> Addresses | None:
    found = addresses(runs)
    if found is None:
        return None
    health = (
        f"{found.prefect_api_url}/health",
        f"{found.mlflow_tracking_uri}/health",
        f"{found.viewer_url}/health",
    )
    return found if all(answers(url) for url in health) else None


def down(runs: Path) -> bool:
    """End the services and all their processes, and return False if they were down."""
    state = read(runs)
    if state is None:
        return False
    os.kill(state.pid, signal.SIGTERM)
    while started_at(state.pid) == state.started:
        time.sleep(POLL_S)
    return True


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.provision.services",
        description="Start or stop the Prefect server, MLflow server, viewer and worker of this machine. "
        "Their data is in the folder AGENTGYM_RUNS (default: runs).",
        epilog="example: python -m tasks.provision.services up",
    )
    parser.add_argument(
        "action",
        choices=["up", "down", "status"],
        help="start the services, stop them, or show their addresses",
    )
    action = parser.parse_args().action
    try:
        runs = infra_settings().runs.resolve()
        if action == "down":
            print("The services were stopped." if down(runs) else "The services were not running.")
            return 0
        found = up(runs) if action == "up" else addresses(runs)
    except (ProvisionError, SettingsError) as problem:
        print(problem, file=sys.stderr)
        return 1
    if found is None:
        print("The services are not running. Start them with `make up`.")
        return 1
    print(
        f"Prefect  {found.prefect_ui_url}\nMLflow   {found.mlflow_tracking_uri}\nViewer   "
        f"{found.viewer_url}"
    )
    print(f"Login    {login(runs)}\nStop the services with `make down`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
