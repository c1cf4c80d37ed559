"""Tests of the resumable trajectory writer: kills, damaged parts, failed members and its lock."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.rollout import resumable_writer
from tasks.rollout.resumable_writer import (
    PART_EPISODES,
    CollectionBusyError,
    DifferentCollectionError,
    ResumableTrajectoryWriter,
)
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.processes import run_python


def episode(group: int, member: int, outcome: Outcome = Outcome.SUCCESS) -> Trajectory:
    return Trajectory("textcraft", group, group, member, 0, 4, 0, "oracle", outcome=outcome)


def stored(folder: Path) -> list[tuple[int, int]]:
    return sorted(
        (t.group, t.member)
        for part in folder.glob("part-*.parquet")
        for t in read_trajectories(part)
    )


KILLED = """
import os, pathlib, sys
from tests.check.test_resumable_writer import *
writer = ResumableTrajectoryWriter(pathlib.Path(sys.argv[1]), {}, 3)
for group in range(40):
    for member in (0, 1):
        writer.add(episode(group, member))
for group in range(10):
    writer.add(episode(group, 2))
writer.save(0)
writer.add(episode(10, 2))
os.kill(os.getpid(), 9)
"""


def test_kill_loses_only_episodes_since_the_last_save(tmp_path: Path) -> None:
    run_python(KILLED, str(tmp_path), status=-signal.SIGKILL)
    writer = ResumableTrajectoryWriter(tmp_path, {}, 3)
    restored = {
        (group, member) for group in range(40) for member in range(3) if writer.has(group, member)
    }
    saved = {(group, member) for group in range(40) for member in (0, 1)} | {
        (group, 2) for group in range(10)
    }
    assert restored in (
        saved,
        saved | {(10, 2)},
    )  # on a slow machine the last episode may be saved too
    for group in range(10, 40):
        if not writer.has(group, 2):
            writer.add(episode(group, 2))
    writer.close()
    assert stored(tmp_path) == [(group, member) for group in range(40) for member in range(3)]
    assert not (tmp_path / "pending").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-8] + bytes(8),
    ],
)
def test_damaged_part_is_moved_and_its_groups_are_played_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for group in range(3):
        writer = ResumableTrajectoryWriter(tmp_path, {}, 2)
        writer.add(episode(group, 0))
        writer.add(episode(group, 1))
        writer.close()
    part = tmp_path / "part-000001.parquet"
    part.write_bytes(damage(part.read_bytes()))
    damaged = part.read_bytes()
    with caplog.at_level("WARNING"):
        writer = ResumableTrajectoryWriter(tmp_path, {}, 2)
    assert [str(part) in record.getMessage() for record in caplog.records] == [True]
    assert (tmp_path / "damaged" / part.name).read_bytes() == damaged
    assert [group for group in range(3) if not writer.has(group, 0)] == [1]
    writer.add(episode(1, 0))
    writer.add(episode(1, 1))
    writer.close()
    assert stored(tmp_path) == [(group, member) for group in range(3) for member in (0, 1)]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": '])
def test_damaged_settings_of_a_collection_are_named(content: str, tmp_path: Path) -> None:
    ResumableTrajectoryWriter(tmp_path, {}, 2).close()
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(DifferentCollectionError) as refused:
        ResumableTrajectoryWriter(tmp_path, {}, 2)
    assert str(tmp_path / "settings.json") in str(refused.value)


def test_kill_between_part_and_pending_cleanup_duplicates_no_episode(tmp_path: Path) -> None:
    writer = ResumableTrajectoryWriter(tmp_path / "a", {}, 2)
    for group in range(3):
        writer.add(episode(group, 0))
        writer.save(0)
    shutil.copytree(tmp_path / "a" / "pending", tmp_path / "kept")
    for group in range(2):
        writer.add(episode(group, 1))
    writer.close()
    shutil.copytree(tmp_path / "kept", tmp_path / "a" / "pending", dirs_exist_ok=True)
    again = ResumableTrajectoryWriter(tmp_path / "a", {}, 2)
    again.add(episode(2, 1))
    again.close()
    assert stored(tmp_path / "a") == [(group, member) for group in range(3) for member in (0, 1)]


def test_full_parts_are_written_before_the_writer_closes(tmp_path: Path) -> None:
    writer = ResumableTrajectoryWriter(tmp_path, {}, 1)
    for group in range(PART_EPISODES + 5):
        writer.add(episode(group, 0))
        if group % 100 == 0:
            writer.save(0)
    writer.close()
    assert len(stored(tmp_path)) == PART_EPISODES + 5
    assert len(writer.parts()) == 2


def test_part_written_while_pending_episodes_are_loaded_loses_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ResumableTrajectoryWriter(tmp_path, {}, 2)
    for group, member in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]:
        writer.add(episode(group, member))
    writer.save(0)
    writer._held.close()  # killed before the part of groups 0 and 1 is written
    monkeypatch.setattr(resumable_writer, "PART_EPISODES", 4)
    ResumableTrajectoryWriter(tmp_path, {}, 2).close()
    assert stored(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert ResumableTrajectoryWriter(tmp_path, {}, 2).has(2, 0)


def test_part_keeps_other_members_of_a_group_with_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_writer, "PART_EPISODES", 2)
    writer = ResumableTrajectoryWriter(tmp_path, {}, 2)
    writer.add(episode(0, 0))
    writer.add(episode(0, 1, Outcome.FAILED))
    writer.add(episode(1, 0))
    writer.add(episode(1, 1))
    writer.close()
    again = ResumableTrajectoryWriter(tmp_path, {}, 2)
    assert (again.has(0, 0), again.has(0, 1)) == (True, False)


def test_failed_member_is_played_again_and_other_members_are_kept(tmp_path: Path) -> None:
    writer = ResumableTrajectoryWriter(tmp_path, {}, 2)
    writer.add(episode(0, 0))
    writer.add(episode(0, 1, Outcome.FAILED))
    writer.close()
    again = ResumableTrajectoryWriter(tmp_path, {}, 2)
    assert (again.has(0, 0), again.has(0, 1)) == (True, False)
    again.add(episode(0, 1))
    again.close()
    assert stored(tmp_path) == [(0, 0), (0, 1)]


def test_second_writer_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    first = ResumableTrajectoryWriter(tmp_path, {}, 2)
    with pytest.raises(CollectionBusyError, match=rf"{os.getpid()}.*{re.escape(str(tmp_path))}"):
        ResumableTrajectoryWriter(tmp_path, {}, 2)
    first.close()
    ResumableTrajectoryWriter(tmp_path, {}, 2).close()
