"""The recorded trajectories that a run trains on. A run reads the same files after a restart."""

from __future__ import annotations

import json
from pathlib import Path

from configs.files import parquet_files
from configs.recipe import RecipeError
from tasks.files import read_json, replace_file
from tasks.starter.build_cache import digest

RECORDED = "recorded.json"
"""File in the run's folder with the name and the digest of each recorded file."""


def recorded_files(trajectories: str | Path, run: Path) -> list[Path]:
    """Return the parquet files that a run began with. Files that were added since are left out.

    The first call stores their names and digests in the run's folder.

    Args:
        trajectories: `algorithm.trajectories`: a parquet file or a folder of them.
        run: The run's folder.

    Raises:
        RecipeError: A file has changed or is missing.
    """
    path = Path(trajectories)
    folder = path if path.is_dir() else path.parent
    if begun := read_json(run / RECORDED):
        for name, of_file in begun.items():
            if not (folder / name).is_file() or digest(folder / name) != of_file:
                raise RecipeError(
                    f"algorithm.trajectories: {folder / name} has changed or is missing since the "
                    f"run began. Restore it, or delete {run} to train again"
                )
        return [folder / name for name in begun]
    files = parquet_files(path)
    digests = {file.name: digest(file) for file in files}
    replace_file(run / RECORDED, json.dumps(digests, indent=1) + "\n", durable=True)
    return files
