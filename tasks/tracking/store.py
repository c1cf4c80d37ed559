"""Opening an MLflow store: an sqlite file, or a server."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.mlflow_import import TrackingError, as_tracking_error, load_mlflow
from tasks.tracking.mlflow_page import present_experiment
from tasks.tracking.relocation import follow_moved_folder
from tasks.tracking.runs import open_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Store:
    """An opened store.

    Attributes:
        client: MLflow's client of it.
        uri: Its address.
        experiment_id: MLflow's number of the experiment in use.
    """

    client: MlflowClient
    uri: str
    experiment_id: str


def absolute_uri(tracking_uri: str) -> str:
    """The address of a store, independent of the working directory.

    Raises:
        TrackingError: The address is neither an sqlite file's nor an MLflow server's.
    """
    if not tracking_uri.startswith((_SQLITE, "http://", "https://")):
        raise TrackingError(
            f"mlflow_tracking_uri is {tracking_uri!r}; use sqlite:///path/to/file.db or the http(s) address of an MLflow server"
        )
    database = _database(tracking_uri)
    return tracking_uri if database is None else f"{_SQLITE}{database}"


def connect(tracking_uri: str) -> MlflowClient:
    """MLflow's client of a store; the tables of an sqlite file are made where they are absent.

    Raises:
        TrackingError: The file is no database.
    """
    mlflow = load_mlflow()
    with _alone(tracking_uri), as_tracking_error(f"the store {tracking_uri}"):
        client: MlflowClient = mlflow.MlflowClient(tracking_uri)
        client.search_experiments(max_results=1)
        return client


def open_store(tracking_uri: str, experiment_name: str) -> Store:
    """Opens a store, and makes the experiment (MLflow's group of runs) and, of an sqlite file, the tables where they are absent.

    Pictures and tables of an sqlite store go to the folder `artifacts` beside the file.

    Raises:
        TrackingError: The file is no database, or the experiment was deleted. What may pass (a server that does not answer) is
            raised as it comes from MLflow.
    """
    mlflow = load_mlflow()
    database = _database(tracking_uri)
    artifacts = None if database is None else (database.parent / "artifacts" / experiment_name).as_uri()
    with _alone(tracking_uri), as_tracking_error(f"the store {tracking_uri}"):
        client = mlflow.MlflowClient(tracking_uri)
        experiment_id = open_experiment(client, experiment_name, artifacts)
        present_experiment(client, experiment_id)
        return Store(client, tracking_uri, experiment_id)


def _database(tracking_uri: str) -> Path | None:
    return Path(tracking_uri.removeprefix(_SQLITE)).absolute() if tracking_uri.startswith(_SQLITE) else None


def _alone(tracking_uri: str) -> AbstractContextManager[None]:
    database = _database(tracking_uri)
    return nullcontext() if database is None else _opened_alone(database)


@contextmanager
def _opened_alone(database: Path) -> Iterator[None]:
    """Holds other processes back while MLflow makes the tables of a new sqlite file: of several that do it at once all but one fail."""
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with database.with_name(f"{database.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write_ahead(database)
            follow_moved_folder(database)
            yield
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"the MLflow database {database} cannot be opened: {error}") from error


def _write_ahead(database: Path) -> None:
    """Puts an sqlite file in write-ahead mode: migrations and every write take half the time, and readers need not wait."""
    with closing(sqlite3.connect(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # in use: it stays as it is
                raise
