"""A flow that a study runs in a separate process: python -m flows.job FILE.

The file holds the flow's parameters.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from configs.config_model import ConfigModel
from configs.evaluation_grid import EvaluationGrid
from flows.command import LocalRecords, run_command, set_engine_variables
from flows.exit import exit_with


class TrainJob(ConfigModel):
    """Parameters of `flows.scaling_inter`."""

    recipe: str
    overrides: dict[str, Any]


class EvaluateJob(ConfigModel):
    """Parameters of `flows.evaluate`."""

    grid: EvaluationGrid
    folder: Path


Job = TrainJob | EvaluateJob


def write_job(file: Path, job: Job) -> list[str]:
    """Write a job's file, and return the module and the arguments that run it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(job.model_dump_json(), encoding="utf-8")
    return ["flows.job", str(file)]


def read_job(file: Path) -> Job:
    """Read a job's file."""
    adapter: TypeAdapter[Job] = TypeAdapter(Job)
    return adapter.validate_json(file.read_bytes())


def main() -> None:
    """Run the job of the command line."""
    job = read_job(Path(sys.argv[1]))
    if isinstance(job, TrainJob):
        records = LocalRecords()
        from flows.scaling_inter import scaling_inter

        run_command(records, lambda: scaling_inter(job.recipe, overrides=job.overrides))
    else:
        set_engine_variables()
        records = LocalRecords()
        from flows.evaluate import evaluate

        run_command(
            records, lambda: evaluate(job.grid, job.folder), continues="with the missing episodes"
        )


if __name__ == "__main__":
    exit_with(main)
