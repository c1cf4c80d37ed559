"""Upload a run's folder to shared storage, and restore it on a machine that lacks it.

The files are uploaded in this order:

STORAGE/<run>/...                           rollouts, evaluations, metrics, records: first
STORAGE/<run>/checkpoints/step-000010/...   each checkpoint's manifest last, after all of the above
STORAGE/<run>/done/..., collapse.json       completion marks, last

STORAGE/<run>/owner.json names the process that owns the run (run_lease.py).

If a checkpoint in the storage has a manifest, everything that its steps produced is there too. The
run can therefore continue without a gap, wherever an upload was cut off.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.files import read_json, replace_file
from tasks.tracking.outbox import OUTBOX, SENT, Outbox
from tasks.tracking.shared_storage import SharedStorage
from tasks.training.checkpoint import (
    MANIFEST,
    CheckpointError,
    folder_name,
    listed,
    steps_in,
    steps_of,
    verify,
)

_log = logging.getLogger(__name__)

CHECKPOINTS, RECORDS = "checkpoints", "records"
RECORDS_NAME = f"{RECORDS}/{OUTBOX}"
OWNER = "owner.json"
BEGUN = "begun.json"
"""Copy of the manifest, kept in a checkpoint while it is uploaded.

If it equals the local manifest, the remote files come from an earlier attempt at the same
checkpoint. They are not uploaded again.
"""
COLLAPSE = "collapse.json"
MARK = 2
"""Upload rank of completion marks. They hold only if the checkpoints exist, so they go last."""
STORED = ".stored.json"
"""File in the run's folder that lists its uploaded files with their size and mtime at upload."""
FOLDERS_STAYING_HERE = (CHECKPOINTS, "progress")
STAYS_HERE = (SENT,)
STAYS_HERE_SUFFIXES = (".lock", ".log", ".verdict")

Stat = tuple[int, int]


def upload(
    storage: SharedStorage,
    folder: Path,
    superseded: Callable[[list[int]], list[int]],
    check: Callable[[], None],
) -> None:
    """Upload missing files of a run's folder and delete superseded checkpoints in the storage.

    Args:
        superseded: Takes the steps that have a checkpoint and returns those to delete.
        check: Called before each larger upload. It raises an exception to stop the upload.
    """
    # Files are listed in reverse order of dependency: marks, checkpoints, records, all other files.
    # So nothing is uploaded without the files it depends on. Records may be ahead of the
    # checkpoints. Their later steps are dropped when the run resumes.
    marks = {name: stat for name, stat in _files(folder).items() if _rank(name) == MARK}
    local, remote_files = steps_in(folder / CHECKPOINTS), storage.files(folder.name)
    records = _read_records(folder)
    files = {name: stat for name, stat in _files(folder).items() if _rank(name) != MARK}
    if records:
        files[RECORDS_NAME] = records[0]
    if local:
        known = {*local, *(step for step in _complete_steps(remote_files) if step <= max(local))}
    else:
        known = set()
    kept = known.difference(superseded(sorted(known)))
    if local:
        # Later steps were rolled back.
        _remove_checkpoints(
            storage, folder, [step for step in _steps(remote_files) if step > max(local)]
        )
    stored = _read_stored(folder, storage.url)

    def put(files: dict[str, Stat]) -> None:
        changed = [
            name
            for name, stat in files.items()
            if stored.get(name) != stat or remote_files.get(name) != stat[0]
        ]
        for rank in range(MARK + 1):
            if batch := [name for name in changed if _rank(name) == rank]:
                check()
                storage.put(
                    {
                        f"{folder.name}/{name}": folder / name
                        for name in batch
                        if name != RECORDS_NAME
                    }
                )
                if records and RECORDS_NAME in batch:
                    storage.write(f"{folder.name}/{RECORDS_NAME}", records[1])
                stored.update({name: files[name] for name in batch})
                _write_stored(folder, storage.url, stored)

    put(files)
    for step in sorted(kept.intersection(local), reverse=True):
        check()
        _upload_checkpoint(storage, folder, step, remote_files)
    if local:
        _remove_checkpoints(
            storage,
            folder,
            [step for step in _steps(remote_files) if step not in kept and step <= max(local)],
        )
    put(marks)


def _remove_checkpoints(storage: SharedStorage, folder: Path, steps: list[int]) -> None:
    for step in steps:
        place = f"{folder.name}/{CHECKPOINTS}/{folder_name(step)}"
        storage.remove(f"{place}/{MANIFEST}")  # delete first: marks it incomplete
        storage.remove(place)


def is_stored(folder: Path, url: str) -> bool:
    """Return whether all files of a run's folder, as far as the folder says, are uploaded."""
    return _read_stored(folder, url).items() >= _files(folder).items()


def restore(storage: SharedStorage, folder: Path, fingerprint: str) -> int | None:
    """Fetch a run from the storage if the storage is ahead of the local folder.

    Fetches the newest complete checkpoint and all files except older checkpoints. The checkpoint is
    renamed to its final name last, so an interrupted fetch starts again from the beginning.

    Args:
        folder: Folder of the run, claimed by this process.
        fingerprint: Identifier of the experiment in its checkpoints.

    Returns:
        Step of the fetched checkpoint, or 0 if the run has none yet. None if the local folder is up
            to date and nothing was fetched.
    """
    remote_files = storage.files(folder.name)
    remote_files.pop(OWNER, None)
    _sweep(folder)
    local = max(
        (
            step
            for step in steps_in(folder / CHECKPOINTS)
            if _has_sizes(folder / CHECKPOINTS / folder_name(step))
        ),
        default=0,
    )
    later = sorted((step for step in _complete_steps(remote_files) if step > local), reverse=True)
    is_new = not (folder / RECORDS_NAME).exists()
    if not later and not (is_new and remote_files):
        return None
    step, fetched = next(
        (
            (step, path)
            for step in later
            if (path := _fetch_checkpoint(storage, folder, step, fingerprint))
        ),
        (0, None),
    )
    if fetched is None and not is_new:
        return None
    names = [name for name in remote_files if not name.startswith(f"{CHECKPOINTS}/")]
    for rank in range(MARK + 1):
        _fetch(storage, folder, [name for name in names if _rank(name) == rank])
    fetched_now = _files(folder)
    _write_stored(
        folder, storage.url, {name: fetched_now[name] for name in names if name in fetched_now}
    )
    if (folder / RECORDS_NAME).exists():
        Outbox(folder / RECORDS).restart()  # MLflow may be ahead of the storage
    if fetched is not None:
        target = folder / CHECKPOINTS / folder_name(step)
        shutil.rmtree(target, ignore_errors=True)
        fetched.rename(target)
    return step


def _upload_checkpoint(
    storage: SharedStorage, folder: Path, step: int, remote_files: dict[str, int]
) -> None:
    local, place = folder / CHECKPOINTS / folder_name(step), f"{CHECKPOINTS}/{folder_name(step)}"
    remote = f"{folder.name}/{place}"
    try:
        manifest = (local / MANIFEST).read_bytes()
    except FileNotFoundError:
        return  # deleted meanwhile, superseded by newer ones
    has_manifest = f"{place}/{MANIFEST}" in remote_files
    if has_manifest and storage.read(f"{remote}/{MANIFEST}") == manifest:
        if f"{place}/{BEGUN}" in remote_files:  # killed between the last two operations below
            storage.remove(f"{remote}/{BEGUN}")
        return
    with _hard_linked(local) as linked:
        if linked is None:
            return
        try:
            verify(linked)
        except CheckpointError as damaged:
            _log.warning("A damaged checkpoint was not uploaded to %s: %s", storage.url, damaged)
            return
        # The remote manifest is of other weights: this step was damaged here and recomputed.
        if has_manifest:
            storage.remove(f"{remote}/{MANIFEST}")
        sizes = {name: size for name, (size, _) in json.loads(manifest)["files"].items()}
        done = storage.files(remote) if storage.read(f"{remote}/{BEGUN}") == manifest else {}
        if not done:
            storage.write(f"{remote}/{BEGUN}", manifest)
        if missing := [name for name, size in sizes.items() if done.get(name) != size]:
            storage.put({f"{remote}/{name}": linked / name for name in missing})
        arrived = storage.files(remote)
        if missing := [name for name, size in sizes.items() if arrived.get(name) != size]:
            raise OSError(f"the upload to {remote} is incomplete: {', '.join(missing)}")
        storage.write(f"{remote}/{MANIFEST}", manifest)
        storage.remove(f"{remote}/{BEGUN}")


def _fetch_checkpoint(
    storage: SharedStorage, folder: Path, step: int, fingerprint: str
) -> Path | None:
    """Download a checkpoint to a temporary folder and verify it. Return None if it is damaged."""
    remote = f"{folder.name}/{CHECKPOINTS}/{folder_name(step)}"
    fetched = folder / CHECKPOINTS / f".fetched-{folder_name(step)}"
    try:
        files = listed(json.loads(storage.read(f"{remote}/{MANIFEST}") or b"{}"), remote)
        storage.get({f"{remote}/{name}": fetched / name for name in (*files, MANIFEST)})
        verify(fetched, fingerprint)
    except (CheckpointError, FileNotFoundError, ValueError) as damaged:
        _log.warning("A damaged checkpoint of %s was skipped: %s", storage.url, damaged)
        shutil.rmtree(fetched, ignore_errors=True)
        return None
    return fetched


def _fetch(storage: SharedStorage, folder: Path, names: list[str]) -> None:
    """Download files to a temporary folder, then move them into place once all have arrived."""
    if not names:
        return
    temporary = folder / ".fetched"
    storage.get({f"{folder.name}/{name}": temporary / name for name in names})
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).replace(folder / name)
    shutil.rmtree(temporary)


@contextmanager
def _hard_linked(checkpoint: Path) -> Iterator[Path | None]:
    """Yield a copy of hard links, which outlives the checkpoint; None if it is deleted already."""
    linked = checkpoint.with_name(f".uploaded-{checkpoint.name}")
    try:
        shutil.copytree(checkpoint, linked, copy_function=os.link)
    except (FileNotFoundError, shutil.Error):
        shutil.rmtree(linked, ignore_errors=True)
        if (checkpoint / MANIFEST).exists():
            raise
        yield None
        return
    try:
        yield linked
    finally:
        shutil.rmtree(linked, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove temporary folders of a killed upload or fetch."""
    for left in (
        folder / ".fetched",
        *folder.glob(f"{CHECKPOINTS}/.fetched-*"),
        *folder.glob(f"{CHECKPOINTS}/.uploaded-*"),
    ):
        shutil.rmtree(left, ignore_errors=True)


def _files(folder: Path) -> dict[str, Stat]:
    """List the files to upload except checkpoints: name to (size in bytes, mtime in ns)."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in FOLDERS_STAYING_HERE
        ]
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or name in STAYS_HERE or path.suffix in STAYS_HERE_SUFFIXES:
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                found[path.relative_to(folder).as_posix()] = (
                    path.stat().st_size,
                    path.stat().st_mtime_ns,
                )
    return found


def _read_records(folder: Path) -> tuple[Stat, bytes] | None:
    try:  # the size and mtime come first, so that they never describe more than was read
        about = (folder / RECORDS_NAME).stat()
        return (about.st_size, about.st_mtime_ns), (folder / RECORDS_NAME).read_bytes()
    except FileNotFoundError:
        return None


def _rank(name: str) -> int:
    """Return a file's rank in the order of uploads: 0, 1 (JSON about other files) or MARK."""
    if name.startswith("done/") or name == COLLAPSE:
        return MARK
    return 1 if name.endswith(".json") or name == RECORDS_NAME else 0


def _steps(remote_files: dict[str, int]) -> list[int]:
    return sorted(
        set(
            steps_of(
                name.split("/")[1] for name in remote_files if name.startswith(f"{CHECKPOINTS}/")
            )
        )
    )


def _complete_steps(remote_files: dict[str, int]) -> list[int]:
    """Return the steps of all checkpoints that have a manifest."""
    return [
        step
        for step in _steps(remote_files)
        if f"{CHECKPOINTS}/{folder_name(step)}/{MANIFEST}" in remote_files
    ]


def _has_sizes(checkpoint: Path) -> bool:
    """Return whether a checkpoint's files have the sizes in its manifest.

    The trainer checks more.
    """
    try:
        files = read_json(checkpoint / MANIFEST)["files"]
        return all((checkpoint / name).stat().st_size == size for name, (size, _) in files.items())
    except (OSError, KeyError):
        return False


def _read_stored(folder: Path, url: str) -> dict[str, Stat]:
    noted = read_json(folder / STORED)
    if noted.get("url") == url:
        return {name: (size, changed) for name, (size, changed) in noted.get("files", {}).items()}
    return {}


def _write_stored(folder: Path, url: str, stored: dict[str, Stat]) -> None:
    replace_file(folder / STORED, json.dumps({"url": url, "files": stored}))
