"""Tests of the paths in MLflow's database after its folder was moved."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tasks.tracking.relocation import follow_moved_folder


@pytest.mark.parametrize("with_artifacts", [True, False])
def test_paths_follow_only_a_folder_that_was_moved_with_its_artifacts(
    tmp_path: Path, with_artifacts: bool
) -> None:
    """Open a database whose artifacts were, or still are, in /mlflow/artifacts."""
    database = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "CREATE TABLE experiments (experiment_id INTEGER, name TEXT, artifact_location TEXT)"
        )
        connection.execute("CREATE TABLE runs (artifact_uri TEXT)")
        connection.execute("INSERT INTO experiments VALUES (1, 'study', '/mlflow/artifacts/1')")
        connection.execute("INSERT INTO runs VALUES ('/mlflow/artifacts/1/run/artifacts')")
    if with_artifacts:
        (tmp_path / "artifacts" / "1").mkdir(parents=True)
    follow_moved_folder(database)
    with closing(sqlite3.connect(database)) as connection:
        ((location,),) = connection.execute("SELECT artifact_location FROM experiments")
        ((uri,),) = connection.execute("SELECT artifact_uri FROM runs")
    folder = tmp_path if with_artifacts else Path("/mlflow")
    assert location == str(folder / "artifacts/1")
    assert uri == str(folder / "artifacts/1/run/artifacts")
