"""Tests of the empty databases that `make setup` writes and runs folders begin with."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from tasks.provision.empty_databases import FOLDER, place_empty_database

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="make setup writes the databases")

MIGRATIONS = {
    "prefect": "server/database/_migrations/versions/sqlite",
    "mlflow": "store/db_migrations/versions",
}


@pytest.mark.parametrize("package", MIGRATIONS)
def test_a_placed_database_has_the_newest_schema(package: str, tmp_path: Path) -> None:
    path = tmp_path / f"{package}.db"
    place_empty_database(package, path)
    with closing(sqlite3.connect(path)) as database:
        [(found,)] = database.execute("SELECT version_num FROM alembic_version")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    versions = Path(spec.origin).parent / MIGRATIONS[package]
    scripts = ScriptDirectory(str(tmp_path), version_locations=[str(versions)])
    assert found == scripts.get_current_head()


def test_an_existing_database_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.touch()
    place_empty_database("mlflow", path)
    assert path.stat().st_size == 0
    assert list(tmp_path.iterdir()) == [path]
