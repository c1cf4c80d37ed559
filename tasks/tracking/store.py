"""Open an MLflow store: an sqlite file or a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.files import locked
from tasks.tracking.mlflow_import import TrackingError, is_transient, load_mlflow
from tasks.tracking.mlflow_page import present_experiment
from tasks.tracking.relocation import follow_moved_folder
from tasks.tracking.runs import open_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Store:
    """An open store.

    Attributes:
        client: MLflow's client of the store.
        uri: Address of the store.
        experiment_id: MLflow's id of the experiment in use.
    """

    client: MlflowClient
    uri: str
    experiment_id: str


def absolute_uri(tracking_uri: str) -> str:
    """Return the address of a store, independent of the working directory."""
    database = _database(tracking_uri)
    return tracking_uri if database is None else f"{_SQLITE}{database}"


def connect(tracking_uri: str) -> MlflowClient:
    """Return MLflow's client of a store. Missing tables of an sqlite file are created.

    Raises:
        TrackingError: The file is not a database.
    """
    with _opening(tracking_uri) as client:
        client.search_experiments(max_results=1)
        return client


def open_store(tracking_uri: str, experiment_name: str) -> Store:
    """Open a store, and create the experiment (MLflow's group of runs) if it is absent.

    Missing tables of an sqlite file are created. Pictures and tables of an sqlite store go to the
    folder `artifacts` next to the file.

    Raises:
        TrackingError: The file is not a database, or the experiment was deleted. Transient errors,
            such as a server that does not answer, are raised unchanged.
    """
    database = _database(tracking_uri)
    artifacts = (
        None if database is None else (database.parent / "artifacts" / experiment_name).as_uri()
    )
    with _opening(tracking_uri) as client:
        experiment_id = open_experiment(client, experiment_name, artifacts)
        present_experiment(client, experiment_id)
        return Store(client, tracking_uri, experiment_id)


def _database(tracking_uri: str) -> Path | None:
    if tracking_uri.startswith(_SQLITE):
        return Path(tracking_uri.removeprefix(_SQLITE)).absolute()
    return None


@contextmanager
def _opening(tracking_uri: str) -> Iterator[MlflowClient]:
    """Yield a client. An sqlite file is locked meanwhile.

    If several processes create its tables at once, all but one fail.
    """
    mlflow, database = load_mlflow(), _database(tracking_uri)
    try:
        if database is None:
            yield mlflow.MlflowClient(tracking_uri)
            return
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(database.with_name(f"{database.name}.lock")):
            _write_ahead(database)
            follow_moved_folder(database)
            yield mlflow.MlflowClient(tracking_uri)
    except mlflow.MlflowException as error:
        if is_transient(error):
            raise
        raise TrackingError(f"MLflow could not open the store {tracking_uri}: {error}") from error
    except (OSError, sqlite3.Error) as error:
        if database is None:
            raise
        raise TrackingError(f"the MLflow database {database} cannot be opened: {error}") from error


def _write_ahead(database: Path) -> None:
    """Set an sqlite file to write-ahead mode.

    Migrations and writes then take half the time, and readers do not wait.
    """
    with closing(sqlite3.connect(database)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # in use: keep its mode
                raise
