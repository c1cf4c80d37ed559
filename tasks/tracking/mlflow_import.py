"""MLflow, imported late and kept quiet. Everything else in this package gets it from here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The sender tries again by itself; MLflow's own seven retries of two minutes each would hide a dead server for a quarter of an hour.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_LOGGERS = {
    "mlflow.store.db.utils": logging.WARNING,  # "Creating initial MLflow database tables..."
    "mlflow.store.model_registry.abstract_store": logging.WARNING,  # "Waiting up to 300 seconds for model version..."
    "alembic": logging.WARNING,  # one line per migration
    "mlflow.utils.git_utils": logging.ERROR,  # where git is not installed
    "urllib3.connectionpool": logging.ERROR,  # one line per attempt to reach a server that is away; the sender says it once
}

# Codes of MLflow's errors that may pass: the store is busy, unreachable or restarting. Others are refusals, and final.
_PASSING = {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"}


class TrackingError(Exception):
    """Something could not be recorded in MLflow; the message names what, and what to do."""


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: MLflow is away or busy. Anything else is a refusal."""
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError) or getattr(error, "error_code", None) in _PASSING


@contextmanager
def as_tracking_error(what: str) -> Iterator[None]:
    """Turns MLflow's refusals within into `TrackingError`; `what` could not be opened. Errors that may pass are left as they are."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if may_pass(error):
            raise
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
