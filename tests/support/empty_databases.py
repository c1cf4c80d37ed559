"""Empty databases of Prefect and MLflow, created once for all tests.

Creating their schemas takes 10 s of CPU time. Without the copies, every run with its own folder
would spend this time at its start.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from filelock import FileLock

from tests.support.processes import run_python

MAKE = """
import asyncio
import mlflow.store.tracking.sqlalchemy_store  # registers all tables
from mlflow.store.db import utils
from prefect.server.database import provide_database_interface
utils._initialize_tables(utils.create_sqlalchemy_engine("sqlite:///mlflow.db"))
asyncio.run(provide_database_interface().create_db())
"""


def give_empty_databases(runs: Path) -> None:
    """Copy the empty databases to where runs below `runs` expect them, unless they exist there.

    Outside a pytest run this does nothing.
    """
    home, suite = runs / "prefect", os.environ.get("SUITE_FOLDER")
    if suite is None or (home / "prefect.db").exists():
        return
    made = Path(suite) / "empty-databases"
    with FileLock(made.with_suffix(".lock")):
        if not made.is_dir():
            making = made.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            run_python(MAKE, cwd=making, PREFECT_HOME=str(making))
            making.rename(made)
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "prefect.db", home)
    shutil.copy(made / "mlflow.db", runs)
