"""The command line of the flows. It imports no slow modules, so that --help answers at once."""

from __future__ import annotations

import argparse
import logging
import math
import os
import secrets
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from configs.infrastructure import SettingsError, infra_settings
from configs.recipe import RecipeError, load_recipe, parse_overrides, recipe_names
from flows.checks import check_experiment
from flows.model_check import fit_experiment
from flows.signals import INTERRUPTED, Terminated, exit_on_sigterm
from tasks.files import locked

if TYPE_CHECKING:
    from flows.cancellation import CancellationWatch
    from flows.prefect_stand_in import RunServer
    from tasks.provision.local import LocalServer

NOTES = """Every recipe field can be overridden by its dotted name (fields: configs/experiment.py).
AGENTGYM_... variables set addresses, folders and numbers of processes (configs/infrastructure.py)."""


class Arguments(argparse.ArgumentParser):
    """A parser that prints the error before the usage."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str) -> None:
        """
        Args:
            prog: The command, e.g. "agentgym plan".
            usage: The arguments after the command.
            description: What the command does, in a sentence.
            epilog: Examples and notes, printed verbatim.
        """
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print the message and the usage, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")


def set_engine_variables() -> None:
    """Set environment variables for an engine in this process. torch reads them at import."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # an engine on a CPU steps small matrices
    # vLLM reports its choice of CPU memory as a warning.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def recipe_parser(prog: str, description: str, examples: str, options: str = "") -> Arguments:
    """Return a parser of RECIPE and --field.path overrides.

    Args:
        description: What it does.
        examples: Usage examples, for --help.
        options: The flow's own options, as shown in the usage. The flow adds them to the parser.
    """
    usage = " ".join(filter(None, ("RECIPE", options, "[--field.path value ...]")))
    parser = Arguments(prog, usage, description, f"{examples}\n\n{NOTES}")
    parser.add_argument(
        "recipe", metavar="RECIPE", help=f"a YAML file, or one of: {', '.join(recipe_names())}"
    )
    return parser


def positive(word: str) -> int:
    """Parse an integer of at least 1.

    Raises:
        ArgumentTypeError: It is not a positive integer.
    """
    if not (word.isdigit() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"{word!r} is not a positive integer")
    return int(word)


def positive_number(word: str) -> float:
    """Parse a finite number above 0.

    Raises:
        ArgumentTypeError: It is not one.
    """
    with suppress(ValueError):
        if 0 < (number := float(word)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{word!r} is not a positive number")


def parse_recipe(
    parser: argparse.ArgumentParser, arguments: list[str], runs_here: bool = True
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse options and overrides, and check the recipe. Exits on --help and on errors.

    The model and the GPUs are checked only for a run on this machine.
    """
    parsed, rest = parser.parse_known_args(arguments)
    try:
        overrides = parse_overrides(rest)
        experiment = load_recipe(parsed.recipe, overrides)
        check_experiment(experiment, infra_settings(), runs_here)
        if runs_here:
            fit_experiment(experiment)
    except (RecipeError, SettingsError) as problem:
        raise SystemExit(f"{parser.prog}: {problem}") from None
    return parsed, overrides


class LocalRecords:
    """Where a run started by hand keeps its records.

    These are the services of `make up` if they are up, else files under runs/. Must be created
    before Prefect is imported, because Prefect reads its settings at import. Variables that the
    user has set are kept. Without services, the run starts a Prefect server of its own, with a
    login known only to this process and its children. Unlike Prefect's temporary server, it ends
    with the run even if the run is killed.
    """

    def __init__(self, handle_sigterm: bool = True) -> None:
        """
        Args:
            handle_sigterm: Make SIGTERM end the process as Ctrl-C does (see `exit_on_sigterm`).
        """
        from flows.prefect_stand_in import single_run_server
        from tasks.provision.empty_databases import place_empty_database
        from tasks.provision.errors import ProvisionError
        from tasks.provision.local import free_port, no_proxy
        from tasks.provision.prefect_api import guarded
        from tasks.provision.private_files import private_folder, private_runs
        from tasks.provision.services import addresses, login, mlflow_login

        if handle_sigterm:
            exit_on_sigterm()
        os.environ |= no_proxy()
        try:
            settings = infra_settings()
            runs = private_runs(settings.runs.absolute())
            private_folder(runs / "prefect")  # SQLite does not create folders
            services = addresses(runs)
            opens = login(runs) if services else f"agentgym:{secrets.token_urlsafe(24)}"
        except (OSError, ProvisionError, SettingsError) as problem:
            raise SystemExit(str(problem)) from None
        self._server: LocalServer | None = None
        self._started: Future[None] | None = None
        self._services: tuple[Path, str, str] | None = None
        self._kept: RunServer | None = None
        self._cancellation: CancellationWatch | None = None
        defaults = {
            "PREFECT_HOME": str(runs / "prefect"),
            "PREFECT_MEMO_STORE_PATH": str(runs / "prefect" / "memo_store.toml"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            # A flow's log goes to its page, because the terminal shows the progress bar.
            "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
            # Seven retries take four minutes, enough for a server to restart or be replaced.
            "PREFECT_CLIENT_MAX_RETRIES": "7",
            "DO_NOT_TRACK": "1",
        }
        if services is not None and settings.mlflow_tracking_uri in (
            None,
            services.mlflow_tracking_uri,
        ):
            defaults |= {
                "AGENTGYM_MLFLOW_TRACKING_URI": services.mlflow_tracking_uri,
                **mlflow_login(runs),
            }
        theirs = os.environ.get("PREFECT_API_URL")
        if services is not None and theirs in (None, services.prefect_api_url):
            os.environ |= {
                "PREFECT_API_URL": services.prefect_api_url,
                "PREFECT_API_AUTH_STRING": opens,
            }
            self._services = (runs, services.prefect_api_url, opens)
        elif theirs is None:
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            os.environ |= {"PREFECT_API_URL": f"{url}/api", **guarded(url, opens)}
            self._server = single_run_server(port, {})
            place_empty_database("prefect", runs / "prefect" / "prefect.db")
        if services is None and settings.mlflow_tracking_uri is None:
            place_empty_database("mlflow", runs / "mlflow.db")
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        if self._server is not None:
            self._started = ThreadPoolExecutor(1).submit(
                start_exclusively, self._server, runs / "prefect"
            )

    def __enter__(self) -> Self:
        """Wait until records can be written, and mark flow runs whose process was killed.

        Raises:
            ProvisionError: The server did not start.
        """
        from flows.cancellation import CancellationWatch
        from flows.killed_flow_runs import end_killed_flow_runs, serves_these_runs
        from flows.prefect_stand_in import RunServer

        if self._started is not None and self._server is not None:
            self._started.result()
            serves_these_runs(os.environ["PREFECT_API_URL"])
            self._kept = RunServer.of_this_command(self._server, os.environ["PREFECT_API_URL"])
        if self._services is not None:
            self._kept = RunServer.in_place_of_services(*self._services)
            self._cancellation = CancellationWatch(*self._services[1:])
        hide_prefect_tracebacks()
        end_killed_flow_runs()
        return self

    def __exit__(self, *_: object) -> None:
        if self._cancellation is not None:
            self._cancellation.close()
        if self._kept is not None:
            flush_prefect_queues()
            self._kept.close()


def start_exclusively(server: LocalServer, folder: Path) -> None:
    """Start a Prefect server while holding a lock, so that servers start one at a time.

    If several servers create the tables of a new database at once, all but one fail.

    Args:
        folder: The folder of its database.

    Raises:
        ProvisionError: The server did not start.
    """
    with locked(folder / "start.lock"):
        server.start()


def hide_prefect_tracebacks() -> None:
    """Keep Prefect from printing an error's traceback for each task, phase and flow that it passes.

    Prefect's pages still show them. The error itself is reported by `run_command` or by Python's
    traceback.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        return (
            record.name not in ("prefect.flow_runs", "prefect.task_runs")
            or record.levelno < logging.ERROR
        )

    for handler in (*logging.getLogger().handlers, *logging.getLogger("prefect").handlers):
        handler.addFilter(is_wanted)


def flush_prefect_queues(seconds: float = 2.0) -> None:
    """Let Prefect's background threads send their logs and events while the server is still up.

    Without a server each of them would retry for seconds.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        # The worker warns about unsent items, which is expected here.
        logging.getLogger(worker.__name__).setLevel(logging.ERROR)
        worker.drain_all(timeout=seconds)


def run_command(
    records: LocalRecords, run: Callable[[], object], continues: str = "from the last checkpoint"
) -> None:
    """Run a flow from the command line and end the process.

    A known error is printed as one message. Ctrl-C and SIGTERM end all started processes, with exit
    status 130 or 143.

    Args:
        records: Where the flow's records go.
        continues: From where the same command continues after an error.
    """
    from environments.errors import EnvironmentCallError, WrongWorldError
    from tasks.evaluation.benchmark import EvaluationFileError, IncompleteEvaluationError
    from tasks.inference.engine import EngineError
    from tasks.provision.errors import ProvisionError
    from tasks.rollout.resumable_writer import (
        CollectionBusyError,
        DifferentCollectionError,
        MissingEpisodesError,
    )
    from tasks.rollout.trajectory_parquet import TrajectoryFileError
    from tasks.tracking.mlflow_import import TrackingError
    from tasks.tracking.outbox import OutboxError
    from tasks.tracking.owner import RunBusyError
    from tasks.tracking.run_folder import RunFileError
    from tasks.training.checkpoint import CheckpointError
    from tasks.training.left_out import EpisodesLeftOutError
    from tasks.training.trainer_client import TrainerFailedError

    try:
        with records:
            run()
    except (
        CheckpointError,
        CollectionBusyError,
        DifferentCollectionError,
        EpisodesLeftOutError,
        EvaluationFileError,
        IncompleteEvaluationError,
        MissingEpisodesError,
        RecipeError,
        OutboxError,
        RunBusyError,
        RunFileError,
        TrajectoryFileError,
        WrongWorldError,
    ) as problem:
        raise SystemExit(f"\n{type(problem).__name__}: {problem}") from None
    except (
        EngineError,
        EnvironmentCallError,
        OSError,
        ProvisionError,
        TrackingError,
        TrainerFailedError,
    ) as problem:
        raise SystemExit(
            f"\n{type(problem).__name__}: {problem}\nThe same command continues {continues}."
        ) from None
    except KeyboardInterrupt:
        print(f"\nStopped. The same command continues {continues}.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except Terminated as terminated:
        print(f"\nTerminated. The same command continues {continues}.", file=sys.stderr)
        raise terminated from None
