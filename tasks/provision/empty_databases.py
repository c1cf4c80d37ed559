"""Empty databases of Prefect and MLflow, which `make setup` writes once.

    python -m tasks.provision.empty_databases

Creating their tables takes ten seconds. A runs folder therefore begins with copies.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "empty-databases"


def place_empty_database(package: str, path: Path) -> None:
    """Copy the empty database of "prefect" or "mlflow" to `path`, unless there is something.

    If the set-up wrote none for the installed version, nothing is copied. The package then creates
    the tables itself. The folder of `path` must exist.
    """
    if path.exists():
        return
    # The set-up wrote none, another command was faster, or the file system has no links.
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-") as copy,
    ):
        copy.write((FOLDER / _name(package)).read_bytes())
        copy.flush()
        os.link(copy.name, path)


def write_empty_databases() -> None:
    """Write both databases for the installed versions, and remove earlier ones.

    Needs a separate process. The user's settings of Prefect may name another database. They are
    ignored: variables, the profile, and files in the working folder.
    """
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as folder:
        os.chdir(folder)
        made = {package: Path(folder) / f"{package}.db" for package in ("prefect", "mlflow")}
        os.environ["PREFECT_HOME"] = folder
        url = f"sqlite+aiosqlite:///{made['prefect']}"
        os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = url
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - registers all tables
        from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
        from prefect.server.database import provide_database_interface

        _initialize_tables(create_sqlalchemy_engine(f"sqlite:///{made['mlflow']}"))
        asyncio.run(provide_database_interface().create_db())
        kept = Path(folder) / FOLDER.name
        kept.mkdir()
        for package, path in made.items():
            with (
                closing(sqlite3.connect(path)) as source,
                closing(sqlite3.connect(kept / _name(package))) as target,
            ):
                source.backup(target)  # includes what is only in the write-ahead log
        shutil.rmtree(FOLDER, ignore_errors=True)
        kept.rename(FOLDER)


def _name(package: str) -> str:
    return f"{package}-{version(package)}.db"


if __name__ == "__main__":
    write_empty_databases()
