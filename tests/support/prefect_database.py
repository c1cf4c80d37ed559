"""Prefect's empty database, made once for all tests: to bring a new one to the present schema takes 7 s of a processor, at each start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

MAKE = "import asyncio; from prefect.server.database import provide_database_interface as db; asyncio.run(db().create_db())"


def give_empty_database(runs: Path) -> None:
    """Puts it where what records its runs below `runs` looks for it, unless there is one. Only within a run of pytest."""
    home, suite = runs / "prefect", os.environ.get("SUITE_FOLDER")
    if suite is None or (home / "prefect.db").exists():
        return
    made = Path(suite) / "prefect-template"
    with FileLock(made.with_suffix(".lock")):
        if not made.is_dir():
            making = made.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            subprocess.run([sys.executable, "-c", MAKE], env={**os.environ, "PREFECT_HOME": str(making)}, check=True)
            making.rename(made)
    home.mkdir(parents=True, exist_ok=True)
    for part in made.glob("prefect.db*"):
        shutil.copy2(part, home)
