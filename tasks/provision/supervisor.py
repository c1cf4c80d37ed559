"""Keep the services of one machine up, from `services.up` to `services.down`.

Each service is a ChildProcess: it ends with the supervisor, however that ends. A service that dies
is restarted on its port.

    AGENTGYM_RUNS=runs python -m tasks.provision.supervisor
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from configs.infrastructure import SettingsError, infra_settings
from tasks.provision.empty_databases import place_empty_database
from tasks.provision.errors import PortTakenError, ProvisionError, RunsFolderError
from tasks.provision.local import HOST, LocalServer, is_free, no_proxy
from tasks.provision.prefect_api import PrefectApi, guarded
from tasks.provision.prefect_set_up import set_up
from tasks.provision.private_files import private_folder, private_runs
from tasks.provision.process import ROOT, ChildProcess, started_at, sweep
from tasks.provision.services import Addresses, Record, login, mlflow_login, record_path, write
from tasks.tracking.owner import OWN_SERVER, notes_of_ended
from tasks.tracking.relocation import follow_moved_folder

PREFECT_PORT, MLFLOW_PORT, VIEWER_PORT, PORTS_END = 4200, 5000, 5050, 32_768
POOL, WORKER = "agentgym", "this-machine"
RUNS_AT_ONCE = 4
"""Flow runs of the worker in parallel.

Runs that train wait for each other's accelerators. Other runs continue meanwhile.
"""
PREFECT_SERVER = [
    "uvicorn",
    "--factory",
    "tasks.provision.prefect_app:services",
    "--log-level",
    "warning",
    "--no-proxy-headers",
]
PORT_ATTEMPTS = 3
ADDRESS_IN_USE = f"[Errno {errno.EADDRINUSE}]"
START_DEADLINE_S = 600.0
"""Start timeout in seconds, for a machine under heavy load.

A service that dies during its start is noticed at once.
"""
WATCH_S = 0.5
RETRY_S = 10.0
"""Seconds until another attempt, e.g. because a server did not answer or the disk was full."""
END_GRACE_S = 4.0
"""Seconds that flow runs have to end what they started, before they are killed."""


def supervise(runs: Path) -> None:
    """Start the services and keep them up until SIGTERM or SIGINT.

    Raises:
        ProvisionError: A service could not be started or restarted.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    started = started_at(os.getpid())
    assert started is not None
    starting = Record(os.getpid(), started, None)
    write(private_runs(runs), starting)
    follow_moved_folder(runs / "mlflow.db")
    place_empty_database("prefect", private_folder(runs / "prefect") / "prefect.db")
    place_empty_database("mlflow", runs / "mlflow.db")
    services = _Services(runs)
    try:
        for _ in range(PORT_ATTEMPTS):
            try:
                services.start()
                break
            except PortTakenError as taken:
                print(taken, flush=True)
                services = _Services(runs)
        else:
            raise ProvisionError(
                f"other processes took the servers' ports in {PORT_ATTEMPTS} attempts to start"
            )
        while True:
            try:
                write(runs, replace(starting, addresses=services.addresses))
                while services.alive():
                    time.sleep(WATCH_S)
                    _check_not_moved(runs)
                    services.settle()
                write(runs, starting)
                services.restart_dead()
            except OSError as problem:
                _check_not_moved(runs)
                with suppress(OSError):  # the log may be on the full disk
                    print(f"{problem}. Trying again in {RETRY_S:g} s", flush=True)
                time.sleep(RETRY_S)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError):  # moved, or a full disk: readers find that this process has ended
            write(runs, starting)
        services.end()
        record_path(runs).unlink(missing_ok=True)


def _check_not_moved(runs: Path) -> None:
    if not record_path(runs).exists():
        raise RunsFolderError(
            f"{runs} was moved or deleted while its services were running, so they were stopped. "
            "Start them again with `make up`."
        )


class _Services:
    """The four services of one supervisor."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._logs = runs, runs / "services"
        prefect, mlflow, viewer = (
            _free_port(first) for first in (PREFECT_PORT, MLFLOW_PORT, VIEWER_PORT)
        )
        prefect_url, mlflow_url = f"http://{HOST}:{prefect}", f"http://{HOST}:{mlflow}"
        self.addresses = Addresses(
            prefect_url, f"{prefect_url}/api", mlflow_url, f"http://{HOST}:{viewer}"
        )
        self._api = PrefectApi(self.addresses.prefect_api_url, login(runs))
        self._environment = {
            **no_proxy(),
            **guarded(prefect_url, login(runs)),
            **mlflow_login(runs),
            "PREFECT_HOME": str(runs / "prefect"),
            "PREFECT_API_URL": self.addresses.prefect_api_url,
            "PREFECT_MEMO_STORE_PATH": str(runs / "prefect" / "memo_store.toml"),
            "PREFECT_SERVER_UI_API_URL": "/api",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            # Delete flow runs after 90 days, with their logs and artifacts. By default Prefect
            # keeps them for ever.
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_DEFAULT_WORK_POOL_NAME": POOL,
            "DO_NOT_TRACK": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # MLflow's job runner is eight processes that are not used here and take most of the
            # server's start time.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "AGENTGYM_RUNS": str(runs),
            "AGENTGYM_MLFLOW_TRACKING_URI": mlflow_url,
        }
        # Artifacts are files in a plain folder, where a run without the server also puts them.
        store = [
            f"--backend-store-uri=sqlite:///{runs}/mlflow.db",
            "--no-serve-artifacts",
            f"--default-artifact-root={runs}/artifacts",
        ]
        # MLflow's own protection refuses other host names (DNS rebinding) and changes from pages of
        # other machines. The app adds the login.
        own = f"--allowed-hosts {HOST}:{mlflow},localhost:{mlflow} --cors-allowed-origins {mlflow_url},http://localhost:{mlflow}"
        server = "mlflow server --app-name agentgym --workers 1 --uvicorn-opts --no-proxy-headers"
        self._servers = (
            # `prefect server start` runs the same application with uvicorn, too.
            self._server("prefect", prefect, "/api/health", PREFECT_SERVER),
            self._server("mlflow", mlflow, "/health", [*server.split(), *store, *own.split()]),
            self._server("viewer", viewer, "/health", ["dashboards"]),
        )
        self._worker: ChildProcess | None = None
        self._settling: ChildProcess | None = None
        self._settle_at: float | None = None

    def start(self) -> None:
        """Start the servers in parallel, then the worker and the deployments.

        The deployments belong here because a worker without them has nothing to run.

        Raises:
            PortTakenError: Another process took a port while ours were starting, which takes half a
                minute. The caller must try other ports.
            ProvisionError: A service did not start.
        """
        sweep(self._logs)
        with ThreadPoolExecutor(len(self._servers)) as pool:
            try:
                for started in [pool.submit(_timed_start, server) for server in self._servers]:
                    started.result()
            except ProvisionError as problem:
                self.end()
                for server in self._servers:
                    # Our servers have ended. If the other process has ended too, only the log shows
                    # the conflict, perhaps far above a traceback.
                    if not is_free(
                        int(server.url.rpartition(":")[2])
                    ) or ADDRESS_IN_USE in server.log_tail(1000):
                        raise PortTakenError(
                            f"another process uses {server.url}. Trying other ports."
                        ) from problem
                raise
            except BaseException:
                self.end()
                raise
        set_up(self._api, POOL)
        self._start_worker()
        begun = time.monotonic()
        deploy = self._child("deploy", "tasks.provision.deploy")
        deploy.start()
        if deploy.wait(START_DEADLINE_S):
            raise ProvisionError(
                "the deployments of prefect.yaml could not be registered. Last lines of the "
                f"log:\n{deploy.log_tail()}"
            )
        print(f"Deployments registered in {time.monotonic() - begun:.0f} s", flush=True)

    def alive(self) -> bool:
        return (
            all(server.alive() for server in self._servers)
            and self._worker is not None
            and self._worker.alive()
        )

    def restart_dead(self) -> None:
        """Restart dead services on the same port."""
        for server in self._servers:
            if not server.alive():
                print(
                    f"{server.name} died and is restarted. Last lines of its "
                    f"log:\n{server.log_tail()}",
                    flush=True,
                )
                _timed_start(server)
        if self._worker is None or not self._worker.alive():
            if self._worker is not None:
                print(
                    "The worker died and is restarted. Last lines of its "
                    f"log:\n{self._worker.log_tail()}",
                    flush=True,
                )
                self._worker.end()
            self._start_worker()

    def settle(self) -> None:
        """Start a process that completes the records of ended flow runs, if there are any."""
        if self._settling is not None:
            if self._settling.alive():
                return
            failed = self._settling.exit_status != 0
            self._settling.end()
            self._settling = None
            self._settle_at = time.monotonic() + RETRY_S if failed else None
        if self._settle_at is not None and time.monotonic() < self._settle_at:
            return
        if self._settle_at is not None or notes_of_ended(self._runs, OWN_SERVER):
            self._settling, self._settle_at = self._child("settle", "flows.settle"), None
            self._settling.start()

    def end(self) -> None:
        """End flow runs, then the services.

        Flow runs go first so that they can clean up and report how they ended. The worker would
        drop them.
        """
        if self._worker is not None:
            if self._worker.alive():
                self._end_flow_runs(self._worker.pid)
            self._worker.end(END_GRACE_S)
            with suppress(OSError):  # no answer: the next worker's start reports them
                self._report_ended()
        for each in (self._settling, *self._servers):
            if each is not None:
                each.end()

    def _end_flow_runs(self, subreaper: int) -> None:
        """End the worker's children. The worker is a child of its subreaper."""
        with suppress(psutil.NoSuchProcess):
            runs = [
                run for worker in psutil.Process(subreaper).children() for run in worker.children()
            ]
            for run in runs:
                with suppress(psutil.NoSuchProcess):
                    run.terminate()
            psutil.wait_procs(runs, END_GRACE_S)

    def _start_worker(self) -> None:
        self._report_ended()
        begun, since = time.monotonic(), datetime.now(UTC)
        options = [
            "--pool",
            POOL,
            "--type",
            "process",
            "--name",
            WORKER,
            "--limit",
            str(RUNS_AT_ONCE),
        ]
        self._worker = self._child("worker", "tasks.provision.worker", "start", *options)
        self._worker.start()
        self._worker.wait_until(lambda: self._worker_is_ready(since), START_DEADLINE_S)
        print(f"Worker ready in {time.monotonic() - begun:.0f} s", flush=True)

    def _worker_is_ready(self, since: datetime) -> bool:
        """Return whether the worker has sent the server a heartbeat since then."""
        try:
            workers = self._api.ask(f"work_pools/{POOL}/workers/filter", {})
        except OSError:
            return False
        return any(
            worker["name"] == WORKER
            and datetime.fromisoformat(worker["last_heartbeat_time"]) > since
            for worker in workers
        )

    def _report_ended(self) -> None:
        """Mark unfinished flow runs of the worker and their subflows as Crashed.

        Those that were being cancelled are marked as Cancelled. The server does not notice on its
        own that the worker has ended.
        """
        unfinished = ["PENDING", "RUNNING", "CANCELLING"]
        for begun, end in (["CANCELLING"], "CANCELLED"), (["PENDING", "RUNNING"], "CRASHED"):
            state = {"type": end, "message": "The worker that ran this flow ended."}
            which: dict[str, Any] = {
                "work_pools": {"name": {"any_": [POOL]}},
                "flow_runs": {"state": {"type": {"any_": begun}}},
            }
            while found := self._api.ask("flow_runs/filter", which):
                for run in found:
                    self._api.ask(
                        f"flow_runs/{run['id']}/set_state", {"state": state, "force": True}
                    )
                called = {"parent_flow_run_id": {"any_": [run["id"] for run in found]}}
                which = {"flow_runs": called | {"state": {"type": {"any_": unfinished}}}}

    def _server(self, name: str, port: int, health_path: str, module: list[str]) -> LocalServer:
        return LocalServer(
            f"{name}-server",
            [sys.executable, "-m", *module, "--host", HOST, "--port", "{port}"],
            health_path=health_path,
            port=port,
            state_dir=self._logs,
            environment=self._environment,
            cwd=ROOT,
            start_deadline_s=START_DEADLINE_S,
        )

    def _child(self, name: str, module: str, *arguments: str) -> ChildProcess:
        command = [sys.executable, "-m", module, *arguments]
        return ChildProcess(
            name, command, state_dir=self._logs, environment=self._environment, cwd=ROOT
        )


def _timed_start(server: LocalServer) -> None:
    begun = time.monotonic()
    server.start()
    print(f"{server.name} ready in {time.monotonic() - begun:.0f} s", flush=True)


def _free_port(first: int) -> int:
    """Return the first free port from `first` on, below the range of outgoing connections."""
    for port in range(first, PORTS_END):
        if is_free(port):
            return port
    raise ProvisionError(f"no free port from {first} to {PORTS_END - 1}")


def _stop(number: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    try:
        supervise(infra_settings().runs.resolve())
    except (ProvisionError, SettingsError) as problem:
        sys.exit(str(problem))
