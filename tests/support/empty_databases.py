"""The databases of Prefect and MLflow before anything is recorded, made once for all tests.

To bring new ones to the present schema takes 10 s of a processor, which else is spent at the start
of every run with a folder of its own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from filelock import FileLock

from tests.support.processes import run_python

MAKE = """
import asyncio
import mlflow.store.tracking.sqlalchemy_store  # knows all tables
from mlflow.store.db import utils
from prefect.server.database import provide_database_interface
utils._initialize_tables(utils.create_sqlalchemy_engine("sqlite:///mlflow.db"))
asyncio.run(provide_database_interface().create_db())
"""


def give_empty_databases(runs: Path) -> None:
    """Puts them where what records its runs below `runs` looks for them, unless there are some.

    Only within a run of pytest.
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
