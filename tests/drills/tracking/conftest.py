"""Fixtures of the tracking tests: one MLflow store per file, and one tracker per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tasks.tracking.store import open_store
from tasks.tracking.tracker import Tracker


@pytest.fixture(scope="module", autouse=True)
def restored_tracking_uri() -> Iterator[None]:
    """Restore MLflow's tracking URI, which registering a checkpoint changes."""
    before = mlflow.get_tracking_uri()
    yield
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking") / "runs" / "mlflow.db"


@pytest.fixture(scope="module")
def uri(database: Path) -> str:
    return f"sqlite:///{database}"


@pytest.fixture(scope="module")
def client(uri: str) -> MlflowClient:
    open_store(uri, "study")
    return MlflowClient(uri)


@pytest.fixture
def tracker(uri: str, client: MlflowClient, tmp_path: Path) -> Iterator[Tracker]:
    with Tracker(uri, "study", tmp_path / "run") as opened:
        yield opened
