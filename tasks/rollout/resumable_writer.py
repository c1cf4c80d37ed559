"""Trajectories on disk while they are collected: whole groups in parts, so that a collection that was cut off goes on.

FOLDER/settings.json            what is collected
FOLDER/part-000000.parquet      whole groups, in the order in which they were finished
FOLDER/failed/...               groups with a member that failed; played again when the collection is continued
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories

PART_EPISODES = 512


class DifferentCollectionError(Exception):
    """The folder holds a collection with other settings; the message names them."""


class ResumableTrajectoryWriter:
    """Takes finished episodes one by one and keeps only what is not written yet in memory.

    Attributes:
        folder: Where the parts are.
        done: Groups that are whole and on disk.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], group_size: int) -> None:
        """Opens the folder, or makes it.

        Args:
            folder: Where the parts go.
            settings: What makes this collection another than a different one; plain data.
            group_size: Episodes of a group.

        Raises:
            DifferentCollectionError: The folder holds something else.
        """
        self.folder = folder
        self._group_size = group_size
        self._open: dict[int, list[Trajectory]] = {}
        self._whole: list[Trajectory] = []
        self._failed: list[Trajectory] = []
        folder.mkdir(parents=True, exist_ok=True)
        _check_settings(folder / "settings.json", settings)
        shutil.rmtree(folder / "failed", ignore_errors=True)
        self.done = {group for part in self.parts() for group in _groups_of(part)}
        self._number = len(self.parts())

    def parts(self) -> list[Path]:
        """The files of whole groups, in order."""
        return sorted(self.folder.glob("part-*.parquet"))

    def add(self, trajectory: Trajectory) -> None:
        """Takes a finished episode; writes a part when enough have come together."""
        members = self._open.setdefault(trajectory.group, [])
        members.append(trajectory)
        if len(members) < self._group_size:
            return
        del self._open[trajectory.group]
        members.sort(key=lambda t: t.member)
        sound = all(t.outcome is not Outcome.FAILED for t in members)
        (self._whole if sound else self._failed).extend(members)
        if len(self._whole) >= PART_EPISODES:
            self._write_whole()

    def close(self) -> None:
        """Writes what is whole. Groups that are not are lost, to be played when the collection is continued."""
        if self._whole:
            self._write_whole()
        if self._failed:
            write_trajectories(self.folder / "failed" / "part-000000.parquet", self._failed)

    def _write_whole(self) -> None:
        write_trajectories(self.folder / f"part-{self._number:06d}.parquet", self._whole)
        self.done |= {t.group for t in self._whole}
        self._number += 1
        self._whole = []


def _groups_of(part: Path) -> set[int]:
    import pyarrow.parquet as pq

    return set(pq.read_table(part, columns=["group"])["group"].to_pylist())


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(file)
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    if found != wanted:
        names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        differences = "; ".join(f"{name} is {found.get(name)!r} there, {wanted.get(name)!r} now" for name in names)
        raise DifferentCollectionError(
            f"{file.parent} holds another collection ({differences}): choose another folder, or the settings it was begun with"
        )
