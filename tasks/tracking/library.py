"""MLflow, loaded late and kept quiet. Everything else in this package gets it from here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The background writer tries again by itself; MLflow's own seven retries would hide a dead server for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_LOGGERS = {
    "mlflow.store.db.utils": logging.WARNING,  # "Creating initial MLflow database tables..."
    "mlflow.store.model_registry.abstract_store": logging.WARNING,  # "Waiting up to 300 seconds for model version..."
    "alembic": logging.WARNING,  # one line per migration
    "mlflow.utils.git_utils": logging.ERROR,  # where git is not installed
}


class TrackingError(Exception):
    """Something could not be recorded in MLflow; the message names what, and what to do."""


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


@contextmanager
def as_tracking_error(what: str) -> Iterator[None]:
    """Turns MLflow's errors within into `TrackingError`; `what` could not be opened."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise TrackingError(f"MLflow could not open {what}: {error}") from error


@cache
def load_mlflow() -> Any:
    """The `mlflow` module. The first call takes 1-6 s; settings that a user has made in the environment win over ours."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    import mlflow

    return mlflow
