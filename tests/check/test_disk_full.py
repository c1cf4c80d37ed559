"""Tests of each writer on a full disk.

The existing data must stay intact. Once there is space, the same call must succeed without
duplicates. A limit on the size of files (RLIMIT_FSIZE) makes writes fail midway, like a full disk.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from configs.recipe import load_recipe
from tasks.endpoint.recording import Recording
from tasks.evaluation.benchmark import evaluate, read_evaluation, write_evaluation
from tasks.evaluation.nights import Night, read_nights, write_night
from tasks.evaluation.study_episodes_file import episode_rows, write_episodes
from tasks.evaluation.study_results import StudyRun
from tasks.evaluation.study_runs_file import write_runs
from tasks.files import read_rows
from tasks.provision.services import Record, record_path, write
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tasks.tracking.outbox import Outbox
from tasks.tracking.run_folder import RunFolder
from tasks.training.checkpoint import latest, publish

LONG = "x" * 20_000


@contextmanager
def full_disk(room: int = 1000) -> Iterator[None]:
    """Limit the size of files to `room` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def refused() -> Iterator[None]:
    """Check that the block fails because a file has reached its size limit."""
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the error number is checked below
        yield
    # Arrow raises OSError without an error number.
    assert raised.value.errno == errno.EFBIG or os.strerror(errno.EFBIG) in str(raised.value)


def left_over(folder: Path) -> list[str]:
    return [
        path.name for path in folder.rglob("*") if path.is_file() and path.name.endswith(".tmp")
    ]


def episodes(reward: float) -> list[Trajectory]:
    made = []
    for task in range(40):
        each = Trajectory(
            "textcraft",
            task,
            task,
            0,
            0,
            4,
            0,
            "vllm",
            prompt=[1],
            first_observation=f"start {task} {random.random()}",
        )
        each.turns.append(Turn([2], [-0.1], "look", "a", [], reward))
        each.outcome = Outcome.SUCCESS if reward else Outcome.FINISHED
        made.append(each)
    return made


def test_night_file_survives_a_full_disk(tmp_path: Path) -> None:
    night = Night("2026-11-22", 20261122)
    write_night(tmp_path, night)
    with full_disk(), refused():
        write_night(tmp_path, replace(night, said=LONG))
    # Compared as text, since NaN differs from itself.
    assert str(read_nights(tmp_path)) == str(([night], []))
    assert left_over(tmp_path) == []
    write_night(tmp_path, replace(night, verdict="failed", said=LONG))
    assert read_nights(tmp_path)[0][0].said == LONG


def test_evaluation_file_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    before, after = (
        evaluate(episodes(reward), label="start", step=0, horizon=5) for reward in (0.0, 1.0)
    )
    write_evaluation(path, before)
    with full_disk(), refused():
        write_evaluation(path, after)
    assert read_evaluation(path).success.value == before.success.value
    assert left_over(tmp_path) == []
    write_evaluation(path, after)
    assert read_evaluation(path).success.value == 1.0


def test_trajectory_file_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "step-000001.parquet"
    write_trajectories(path, episodes(0.0))
    with full_disk(), refused():
        write_trajectories(path, episodes(1.0))
    assert [each.reward for each in read_trajectories(path)] == [0.0] * 40
    write_trajectories(path, episodes(1.0))
    assert [each.reward for each in read_trajectories(path)] == [1.0] * 40


def test_published_files_of_a_study_survive_a_full_disk(tmp_path: Path) -> None:
    runs, rows = tmp_path / "runs.jsonl.gz", tmp_path / "episodes.parquet"
    before, after = (
        StudyRun("one", 0, [evaluate(episodes(reward), label="start", step=0, horizon=5)], {})
        for reward in (0.0, 1.0)
    )
    write_runs(runs, {"{}": before})
    write_episodes(rows, episode_rows("one", 0, {"start": episodes(0.0)}), {("one", 0)})
    kept = {path.name: path.read_bytes() for path in (runs, rows)}
    with full_disk(room=100), refused():
        write_runs(runs, {"{}": after})
    with full_disk(room=100), refused():
        write_episodes(rows, episode_rows("one", 0, {"start": episodes(1.0)}), {("one", 0)})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_recorded_episode_is_not_duplicated_after_a_full_disk(tmp_path: Path) -> None:
    recording, (episode, *_) = Recording(tmp_path, {}), episodes(1.0)
    recording.add(episode, {})
    with full_disk(100_000), refused():
        # The episode fits, but its line in the JSONL file does not.
        recording.add(episode, {"facts": LONG * 10})
    recording.add(episode, {})
    assert [each.name for each in sorted(tmp_path.glob("*.parquet"))] == [
        "episode-000000.parquet",
        "episode-000001.parquet",
    ]
    assert [row["episode"] for row in read_rows(tmp_path / "episodes.jsonl")] == [0, 1]


def test_checkpoints_survive_a_full_disk(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"

    def write_files(step: int) -> Path:
        folder = tmp_path / f"unfinished-{step}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(bytes(step))
        return folder

    first = publish(write_files(1), checkpoints, 1, "a run")
    with full_disk(20), refused():
        publish(write_files(2), checkpoints, 2, "a run")
    assert latest(checkpoints, "a run") == (first, [])
    second = publish(write_files(2), checkpoints, 2, "a run")
    assert latest(checkpoints, "a run") == (second, [])


def test_collection_continues_after_a_full_disk(tmp_path: Path) -> None:
    writer = ResumableTrajectoryWriter(tmp_path / "out", {"seed": 0}, 1)
    stored = episodes(1.0)
    for each in stored[:20]:
        writer.add(each)
    with full_disk(), refused():
        writer.close()
    writer.close()
    again = ResumableTrajectoryWriter(tmp_path / "out", {"seed": 0}, 1)
    for each in stored:
        if not again.has(each.group, each.member):
            again.add(each)
    again.close()
    found = [
        each.task
        for part in sorted((tmp_path / "out").glob("part-*.parquet"))
        for each in read_trajectories(part)
    ]
    assert sorted(found) == list(range(40))


def test_step_metrics_survive_a_full_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, load_recipe("textcraft"))
    with folder.claimed():
        folder.add_metrics(1, {"loss": 1.0})
        with full_disk(100), refused():
            folder.add_metrics(2, dict.fromkeys(map(str, range(100)), 2.0))
        assert folder.metrics() == {1: {"loss": 1.0}}
        folder.add_metrics(2, {"loss": 2.0})
        assert folder.metrics() == {1: {"loss": 1.0}, 2: {"loss": 2.0}}
        with full_disk(10), refused():
            folder.replace_metrics({1: {"loss": 3.0}})
        assert sorted(folder.metrics()) == [1, 2]


def test_mlflow_records_are_complete_after_a_full_disk(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "records", "e", "s")
    outbox.add({"id": "a", "kind": "table", "text": "short"})
    with full_disk(), refused():
        outbox.add({"id": "b", "kind": "table", "text": LONG})
    reopened = Outbox(tmp_path / "records")
    assert "b" not in reopened
    assert reopened.add({"id": "b", "kind": "table", "text": LONG})
    assert [
        record["id"] for record, _ in Outbox(tmp_path / "records").unsent(reopened.read_sent())
    ] == ["a", "b"]


def test_services_record_is_written_after_a_full_disk(tmp_path: Path) -> None:
    with full_disk(3), refused():
        write(tmp_path, Record(1, 2, None))
    assert not record_path(tmp_path).exists()
    write(tmp_path, Record(1, 2, None))
    assert json.loads(record_path(tmp_path).read_text())["pid"] == 1
