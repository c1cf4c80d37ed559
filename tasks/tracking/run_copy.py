"""A run's folder in shared storage: what is uploaded in which order, and how a machine without it gets it back.

STORAGE/<run>/...                           rollouts, evaluations, metrics, records: uploaded first
STORAGE/<run>/checkpoints/step-000010/...   complete once it has its manifest, which is uploaded after all of the above
STORAGE/<run>/done/..., collapse.json       marks of what is done, uploaded last
STORAGE/<run>/owner.json                    which process carries the run out (run_lease.py)

A checkpoint with a manifest therefore has everything in the storage that its steps left behind. An upload that is cut off at any
point leaves a folder from which the run continues without a gap.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.tracking.outbox import OUTBOX, SENT, Outbox
from tasks.tracking.shared_storage import SharedStorage
from tasks.training.checkpoint import MANIFEST, CheckpointError, folder_name, listed, steps_in, steps_of, verify

_log = logging.getLogger(__name__)

CHECKPOINTS, RECORDS = "checkpoints", "records"
RECORDS_NAME = f"{RECORDS}/{OUTBOX}"
OWNER = "owner.json"
BEGUN = "begun.json"
"""In a checkpoint that is being uploaded: its manifest. Files beside it are of an earlier attempt at the same checkpoint."""
COLLAPSE = "collapse.json"
MARK = 2
"""Rank of the marks: what they say is true only with the checkpoints, so they are uploaded last."""
STORED = ".stored.json"
"""In the run's own folder: which of its files are in the storage, with the size and time that they had then."""
FOLDERS_STAYING_HERE = (CHECKPOINTS, "progress")
STAYS_HERE = (SENT,)
STAYS_HERE_SUFFIXES = (".lock", ".log", ".verdict")

Stat = tuple[int, int]


def upload(storage: SharedStorage, folder: Path, superseded: Callable[[list[int]], list[int]], check: Callable[[], None]) -> None:
    """Uploads what the storage lacks of a run's folder and deletes the checkpoints that are not kept. Called again, it goes on.

    Args:
        storage: Where to.
        folder: The run's.
        superseded: Which of the steps that have a checkpoint there need none.
        check: Called before each larger upload; raises when it must not go on.
    """
    # Each is listed before what it stands on: marks, checkpoints, records, all other files. Records may be further than the
    # checkpoints: what they say of later steps is taken back when the run continues.
    marks = {name: stat for name, stat in _files(folder).items() if _rank(name) == MARK}
    here, there = steps_in(folder / CHECKPOINTS), storage.files(folder.name)
    records = _read_records(folder)
    files = {name: stat for name, stat in _files(folder).items() if _rank(name) != MARK}
    if records:
        files[RECORDS_NAME] = records[0]
    known = {*here, *(step for step in _whole(there) if step <= max(here))} if here else set()
    kept = known.difference(superseded(sorted(known)))
    if here:
        _remove_checkpoints(storage, folder, [step for step in _steps(there) if step > max(here)])  # they were rolled back
    stored = _read_stored(folder, storage.url)

    def put(some: dict[str, Stat]) -> None:
        changed = [name for name, stat in some.items() if stored.get(name) != stat or there.get(name) != stat[0]]
        for rank in range(MARK + 1):
            if batch := [name for name in changed if _rank(name) == rank]:
                check()
                storage.put({f"{folder.name}/{name}": folder / name for name in batch if name != RECORDS_NAME})
                if records and RECORDS_NAME in batch:
                    storage.write(f"{folder.name}/{RECORDS_NAME}", records[1])
                stored.update({name: some[name] for name in batch})
                _write_stored(folder, storage.url, stored)

    put(files)
    for step in sorted(kept.intersection(here), reverse=True):
        check()
        _upload_checkpoint(storage, folder, step, there)
    if here:
        _remove_checkpoints(storage, folder, [step for step in _steps(there) if step not in kept and step <= max(here)])
    put(marks)


def _remove_checkpoints(storage: SharedStorage, folder: Path, steps: list[int]) -> None:
    for step in steps:
        place = f"{folder.name}/{CHECKPOINTS}/{folder_name(step)}"
        storage.remove(f"{place}/{MANIFEST}")  # first: what is left of it is not whole
        storage.remove(place)


def is_stored(folder: Path, url: str) -> bool:
    """Whether all of a run's folder but its checkpoints was uploaded; asks the folder alone. Marks of what is done come after these."""
    return _read_stored(folder, url).items() >= _files(folder).items()


def restore(storage: SharedStorage, folder: Path, fingerprint: str) -> int | None:
    """Fetches a run that is further in the storage than in its folder: its newest whole checkpoint, and all but the checkpoints before it.

    The checkpoint takes its name last: a fetch that was cut off is begun again.

    Args:
        storage: Where from.
        folder: The run's, claimed.
        fingerprint: Names the experiment in its checkpoints.

    Returns:
        The step of the checkpoint, 0 where there is none yet; None where the folder is as far and nothing was fetched.
    """
    there = storage.files(folder.name)
    there.pop(OWNER, None)
    _sweep(folder)
    here = max((step for step in steps_in(folder / CHECKPOINTS) if _has_sizes(folder / CHECKPOINTS / folder_name(step))), default=0)
    later = sorted((step for step in _whole(there) if step > here), reverse=True)
    is_new = not (folder / RECORDS_NAME).exists()
    if not later and not (is_new and there):
        return None
    step, fetched = next(((step, path) for step in later if (path := _fetch_checkpoint(storage, folder, step, fingerprint))), (0, None))
    if fetched is None and not is_new:
        return None
    names = [name for name in there if not name.startswith(f"{CHECKPOINTS}/")]
    for rank in range(MARK + 1):
        _fetch(storage, folder, [name for name in names if _rank(name) == rank])
    fetched_now = _files(folder)
    _write_stored(folder, storage.url, {name: fetched_now[name] for name in names if name in fetched_now})
    if (folder / RECORDS_NAME).exists():
        Outbox(folder / RECORDS).begin_anew()  # MLflow may have been given more than the storage was
    if fetched is not None:
        target = folder / CHECKPOINTS / folder_name(step)
        shutil.rmtree(target, ignore_errors=True)
        fetched.rename(target)
    return step


def _upload_checkpoint(storage: SharedStorage, folder: Path, step: int, there: dict[str, int]) -> None:
    local, place = folder / CHECKPOINTS / folder_name(step), f"{CHECKPOINTS}/{folder_name(step)}"
    remote = f"{folder.name}/{place}"
    try:
        manifest = (local / MANIFEST).read_bytes()
    except FileNotFoundError:
        return  # deleted meanwhile, because there are newer ones
    has_manifest = f"{place}/{MANIFEST}" in there
    if has_manifest and storage.read(f"{remote}/{MANIFEST}") == manifest:
        if f"{place}/{BEGUN}" in there:  # killed between the two
            storage.remove(f"{remote}/{BEGUN}")
        return
    with _held(local) as held:
        if held is None:
            return
        try:
            verify(held)
        except CheckpointError as damaged:
            _log.warning("Not uploaded to %s: %s", storage.url, damaged)
            return
        if has_manifest:  # of other weights of this step, which were damaged here and made again
            storage.remove(f"{remote}/{MANIFEST}")
        sizes = {name: size for name, (size, _) in json.loads(manifest)["files"].items()}
        done = storage.files(remote) if storage.read(f"{remote}/{BEGUN}") == manifest else {}
        if not done:
            storage.write(f"{remote}/{BEGUN}", manifest)
        if missing := [name for name, size in sizes.items() if done.get(name) != size]:
            storage.put({f"{remote}/{name}": held / name for name in missing})
        arrived = storage.files(remote)
        if wrong := [name for name, size in sizes.items() if arrived.get(name) != size]:
            raise OSError(f"{', '.join(wrong)} of {remote} did not arrive whole")
        storage.write(f"{remote}/{MANIFEST}", manifest)
        storage.remove(f"{remote}/{BEGUN}")


def _fetch_checkpoint(storage: SharedStorage, folder: Path, step: int, fingerprint: str) -> Path | None:
    """Downloads a checkpoint beside its place and verifies it; None where it is damaged."""
    remote = f"{folder.name}/{CHECKPOINTS}/{folder_name(step)}"
    fetched = folder / CHECKPOINTS / f".fetched-{folder_name(step)}"
    try:
        files = listed(json.loads(storage.read(f"{remote}/{MANIFEST}") or b"{}"), remote)
        storage.get({f"{remote}/{name}": fetched / name for name in (*files, MANIFEST)})
        verify(fetched, fingerprint)
    except (CheckpointError, FileNotFoundError, ValueError) as damaged:
        _log.warning("Passed over a checkpoint of %s: %s", storage.url, damaged)
        shutil.rmtree(fetched, ignore_errors=True)
        return None
    return fetched


def _fetch(storage: SharedStorage, folder: Path, names: list[str]) -> None:
    """Downloads files beside their places, and gives them their names when all are there."""
    if not names:
        return
    beside = folder / ".fetched"
    storage.get({f"{folder.name}/{name}": beside / name for name in names})
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).replace(folder / name)
    shutil.rmtree(beside)


@contextmanager
def _held(checkpoint: Path) -> Iterator[Path | None]:
    """The files of a checkpoint under second names, so that none goes while it is uploaded; None where it is gone already."""
    held = checkpoint.with_name(f".uploaded-{checkpoint.name}")
    try:
        shutil.copytree(checkpoint, held, copy_function=os.link)
    except (FileNotFoundError, shutil.Error):
        shutil.rmtree(held, ignore_errors=True)
        if (checkpoint / MANIFEST).exists():
            raise
        yield None
        return
    try:
        yield held
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what a killed upload or fetch left behind."""
    for left in (folder / ".fetched", *folder.glob(f"{CHECKPOINTS}/.fetched-*"), *folder.glob(f"{CHECKPOINTS}/.uploaded-*")):
        shutil.rmtree(left, ignore_errors=True)


def _files(folder: Path) -> dict[str, Stat]:
    """What is uploaded of a run's folder beside its checkpoints: names, each with the file's size and time of change."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in FOLDERS_STAYING_HERE]
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or name in STAYS_HERE or path.suffix in STAYS_HERE_SUFFIXES:
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                found[path.relative_to(folder).as_posix()] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


def _read_records(folder: Path) -> tuple[Stat, bytes] | None:
    """The records as they are now, and the size and time of what was read, or of less."""
    try:
        about = (folder / RECORDS_NAME).stat()
        return (about.st_size, about.st_mtime_ns), (folder / RECORDS_NAME).read_bytes()
    except FileNotFoundError:
        return None


def _rank(name: str) -> int:
    """The place in the order of uploads and fetches: trajectories and pictures, figures and records about them, marks."""
    if name.startswith("done/") or name == COLLAPSE:
        return MARK
    return 1 if name.endswith(".json") or name == RECORDS_NAME else 0


def _steps(there: dict[str, int]) -> list[int]:
    return sorted(set(steps_of(name.split("/")[1] for name in there if name.startswith(f"{CHECKPOINTS}/"))))


def _whole(there: dict[str, int]) -> list[int]:
    """Steps of the checkpoints that have their manifest."""
    return [step for step in _steps(there) if f"{CHECKPOINTS}/{folder_name(step)}/{MANIFEST}" in there]


def _has_sizes(checkpoint: Path) -> bool:
    """Whether a checkpoint's files have the sizes of its manifest; the trainer compares the digests, too."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((checkpoint / name).stat().st_size == size for name, (size, _) in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_stored(folder: Path, url: str) -> dict[str, Stat]:
    try:
        noted = json.loads((folder / STORED).read_text(encoding="utf-8"))
        return {name: (size, changed) for name, (size, changed) in noted["files"].items()} if noted["url"] == url else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_stored(folder: Path, url: str, stored: dict[str, Stat]) -> None:
    unfinished = folder / f"{STORED}.tmp"
    unfinished.write_text(json.dumps({"url": url, "files": stored}), encoding="utf-8")
    unfinished.replace(folder / STORED)
