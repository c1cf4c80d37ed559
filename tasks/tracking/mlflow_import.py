"""Import MLflow on first use and silence its output. The rest of this package uses this module."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

from tasks.provision.imports import without_collections

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The sender retries by itself. MLflow's own seven retries of two minutes each would hide a dead
    # server for a quarter of an hour.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_LOGGERS = {
    "mlflow.store.db.utils": logging.WARNING,  # "Creating initial MLflow database tables..."
    # "Waiting up to 300 seconds for model version..."
    "mlflow.store.model_registry.abstract_store": logging.WARNING,
    "alembic": logging.WARNING,  # one line per migration
    "mlflow.utils.git_utils": logging.ERROR,  # warns if git is not installed
    "mlflow.system_metrics": logging.ERROR,  # warns at every sample of a device without utilisation
    # One line for each failed attempt to connect. The sender logs the outage once.
    "urllib3.connectionpool": logging.ERROR,
}

_TRANSIENT = {
    "TEMPORARILY_UNAVAILABLE",
    "INTERNAL_ERROR",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
}


class TrackingError(Exception):
    """Something could not be recorded in MLflow. The message names it and what to do."""


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later, because MLflow is unavailable or busy."""
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError) or getattr(error, "error_code", None) in _TRANSIENT


@cache
def load_mlflow() -> Any:
    """Return the `mlflow` module. The first call takes 1-6 s.

    Variables of the user take precedence.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    with without_collections():
        import mlflow

    return mlflow
