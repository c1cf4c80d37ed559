"""A run's folder in shared storage, if the settings name one (AGENTGYM_SHARED_STORAGE)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tasks.curriculum.horizon import phases
from tasks.starter.starter_policy import MANIFEST
from tasks.tracking.owner import RunBusyError
from tasks.tracking.run_copy import is_stored
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tasks.training import checkpoint
from tasks.training.collapse import checkpoints_kept, rollback_step


def mirrored(
    folder: RunFolder, storage: SharedStorage | None
) -> AbstractContextManager[RunMirror | None]:
    """Fetch the run's folder from shared storage, and mirror it there while the block runs.

    Does nothing without shared storage. The storage keeps the same checkpoints as the folder.
    """
    if storage is None:
        return nullcontext()

    def superseded(steps: list[int]) -> list[int]:
        experiment, history = folder.experiment, folder.metrics()
        spare = rollback_step(experiment, history, steps)
        spare |= {phase.end_step for phase in phases(experiment, history)}
        return checkpoint.superseded(steps, checkpoints_kept(experiment), spare)

    return RunMirror(storage, folder.path, folder.fingerprint, superseded)


def upload_missing(folder: RunFolder, url: str | None) -> None:
    """Upload the parts of a finished run that are missing in shared storage.

    The storage may have been unreachable, or not configured, when the run ended.

    Args:
        url: Address of the shared storage, or None without it.
    """
    if url is None or is_stored(folder.path, url):
        return
    try:
        with folder.claimed(), mirrored(folder, opened(url)):
            pass
    except (SharedStorageError, RunBusyError) as problem:
        print(
            f"{problem}\nThe run is finished, but its folder {folder.path} is not complete in the "
            "shared storage.",
            file=sys.stderr,
        )


def shared_starter_policy(
    storage: SharedStorage | None, folder: Path, name: str, build: Callable[[], str]
) -> str:
    """Return a starter policy, preferably the one in shared storage.

    A starter policy built on another machine differs in the last digits.

    Args:
        storage: Where starter policies are shared, or None without shared storage.
        folder: Where they are kept on this machine.
        name: Name of this starter policy.
        build: Builds it, or finds it built. Returns its folder.

    Raises:
        SharedStorageError: It could not be fetched or uploaded.
    """
    if storage is None:
        return build()
    remote, manifest = f"starter/{name}", f"starter/{name}/{MANIFEST}"
    try:
        is_kept = storage.read(manifest) is not None
        if is_kept and not (folder / name / MANIFEST).exists():
            beside = folder / f".fetched-{name}"
            shutil.rmtree(beside, ignore_errors=True)
            storage.get({f"{remote}/{file}": beside / file for file in storage.files(remote)})
            shutil.rmtree(folder / name, ignore_errors=True)
            beside.rename(folder / name)
        policy = build()
        if not is_kept:
            files = {
                f"{remote}/{path.relative_to(policy).as_posix()}": path
                for path in Path(policy).rglob("*")
                if path.is_file()
            }
            last = files.pop(manifest)
            storage.put(files)
            storage.put({manifest: last})
    except OSError as problem:
        raise SharedStorageError(
            f"The starter policy could not be read from or written to {storage.url}/{remote}: "
            f"{problem}"
        ) from problem
    return policy
