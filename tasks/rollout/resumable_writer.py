"""Resumable trajectory writer: stores complete groups in part files during a collection.

An interrupted collection continues from these files:

FOLDER/settings.json            settings of the collection
FOLDER/part-000000.parquet      complete groups that finished one after the other, by number
FOLDER/pending/...              finished episodes of incomplete groups, written every few seconds
FOLDER/damaged/...              unreadable parts, whose groups are played again
FOLDER/failed/...               groups with a failed member, which is replayed on resume
FOLDER/writer.lock              lock held by the writing process
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tasks.files import locked, replace_file
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import (
    TrajectoryFileError,
    read_table,
    read_trajectories,
    write_trajectories,
)

log = logging.getLogger(__name__)

PART_EPISODES = 512
SAVE_S = 2.0


class DifferentCollectionError(Exception):
    """The folder holds a collection with other settings.

    Attributes:
        fields: Names of the settings that differ. Empty if the stored settings are unreadable.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class MissingEpisodesError(Exception):
    """A collection ended with failed episodes. The message gives their number and the reasons.

    Attributes:
        missing: Number of failed episodes.
    """

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


class CollectionBusyError(Exception):
    """Another process is writing to the folder. The message names it."""


class ResumableTrajectoryWriter:
    """Buffers finished episodes until their group is complete and written.

    Attributes:
        folder: Folder of the parts.
        done: Groups that are complete and on disk.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], group_size: int) -> None:
        """Open or create the folder and lock it against other writers until `close`.

        The lock of a killed writer is released by the operating system.

        Args:
            folder: Folder of the parts.
            settings: Plain data that identifies the collection.
            group_size: Episodes per group.

        Raises:
            CollectionBusyError: Another process writes to the folder.
            DifferentCollectionError: The folder holds a collection with other settings.
        """
        self.folder = folder
        self._group_size = group_size
        self._open: dict[int, list[Trajectory]] = {}
        self._complete: list[Trajectory] = []
        self._failed: list[Trajectory] = []
        self._unsaved: list[Trajectory] = []
        self._saved_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            _lock(folder / "writer.lock", held)
            check_settings(folder / "settings.json", settings)
            shutil.rmtree(folder / "failed", ignore_errors=True)
            self.done: set[int] = set()
            self._number = 0
            for part in self.parts():
                self._number = int(part.stem.rpartition("-")[2]) + 1
                self._load_part(part)
            self._load_pending()
            self._held = held.pop_all()

    def parts(self) -> list[Path]:
        """Return the part files of complete groups, in order."""
        return sorted(self.folder.glob("part-*.parquet"))

    def has(self, group: int, member: int) -> bool:
        """Return whether an episode is stored and need not be played."""
        return group in self.done or (group, member) in self._resumed

    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode, and write a part once it is full."""
        if trajectory.outcome is not Outcome.FAILED:
            self._unsaved.append(trajectory)
            self.save()
        members = self._open.setdefault(trajectory.group, [])
        members.append(trajectory)
        if len(members) < self._group_size:
            return
        del self._open[trajectory.group]
        members.sort(key=lambda t: t.member)
        complete = all(t.outcome is not Outcome.FAILED for t in members)
        (self._complete if complete else self._failed).extend(members)
        if len(self._complete) >= PART_EPISODES:
            self._write_complete()

    def save(self, every_s: float = SAVE_S) -> None:
        """Write the episodes added since the last save, if that was at least `every_s` seconds ago.

        A kill then loses at most that much work.
        """
        if time.monotonic() - self._saved_at >= every_s:
            self._saved_at = time.monotonic()
            if self._unsaved:
                self._write_pending(self._unsaved)

    def close(self) -> None:
        """Write all buffered episodes and release the lock.

        A resumed collection continues incomplete groups. Calling it again has no effect.
        """
        if self._complete:
            self._write_complete()
        self.save(0)
        if self._failed:
            write_trajectories(self.folder / "failed" / "part-000000.parquet", self._failed)
            self._failed = []
        with suppress(OSError):
            (self.folder / "pending").rmdir()  # removed only when empty
        self._held.close()

    def _load_part(self, part: Path) -> None:
        """Count the groups of a part as done, or move an unreadable part to `damaged/`."""
        try:
            self.done |= set(read_table(part)["group"].to_pylist())
        except TrajectoryFileError as error:
            moved = self.folder / "damaged" / part.name
            moved.parent.mkdir(exist_ok=True)
            part.replace(moved)
            log.warning(
                "%s. The file was moved to %s, and its episodes will be played again.", error, moved
            )

    def _load_pending(self) -> None:
        """Load the pending episodes of an earlier process."""
        found: dict[tuple[int, int], Trajectory] = {}
        for file in self._pending():
            try:
                found |= {(t.group, t.member): t for t in read_trajectories(file)}
            except TrajectoryFileError:
                file.unlink()  # old format or damaged: the episodes are played again
        self._resumed = {place for place in found if place[0] not in self.done}
        for place in sorted(self._resumed):
            self.add(found[place])

    def _write_complete(self) -> None:
        self._complete.sort(key=lambda t: t.group)  # the order of finishing depends on time
        write_trajectories(self.folder / f"part-{self._number:06d}.parquet", self._complete)
        self.done |= {t.group for t in self._complete}
        self._number += 1
        self._complete = []
        former = self._pending()
        groups = [*self._open.values(), self._failed]
        if rest := [t for group in groups for t in group if t.outcome is not Outcome.FAILED]:
            self._write_pending(rest)
        self._unsaved = []
        for file in former:
            file.unlink()

    def _write_pending(self, trajectories: list[Trajectory]) -> None:
        files = self._pending()
        number = int(files[-1].stem) + 1 if files else 0
        write_trajectories(self.folder / "pending" / f"{number:06d}.parquet", trajectories)
        self._unsaved = []

    def _pending(self) -> list[Path]:
        return sorted((self.folder / "pending").glob("*.parquet"))


def _lock(file: Path, held: ExitStack) -> None:
    try:
        lock = held.enter_context(locked(file, wait=False))
    except BlockingIOError:
        owner = file.read_text(encoding="utf-8") or "?"
        raise CollectionBusyError(
            f"process {owner} is already collecting into {file.parent}. Wait for it or choose "
            "another folder with --out."
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a collection, or compare them with the file.

    Raises:
        DifferentCollectionError: They differ, or the file is unreadable.
    """
    current = json.loads(json.dumps(settings))
    if not file.exists():
        replace_file(file, json.dumps(current, indent=1) + "\n")
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise DifferentCollectionError(
            f"the settings of the collection in {file} cannot be read ({error}). Restore the file "
            "or choose another folder with --out."
        ) from None
    if found != current:
        names = tuple(
            sorted(name for name in {*found, *current} if found.get(name) != current.get(name))
        )
        differences = "; ".join(
            f"{name}: {found.get(name)!r} there, {current.get(name)!r} now" for name in names
        )
        raise DifferentCollectionError(
            f"{file.parent} holds a collection with other settings ({differences}). Choose another "
            "folder or use the stored settings.",
            names,
        )
