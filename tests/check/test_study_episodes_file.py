"""Tests of the file with the episodes of a study's evaluations."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tasks.evaluation.study_episodes_file import episode_rows, write_episodes
from tasks.rollout.trajectory import Outcome, Trajectory, Turn


def played(task: int, member: int, outcome: Outcome, *actions: str) -> Trajectory:
    turns = [
        Turn([1, 2], [-0.5, -0.5], action, "Nothing happens.", refused=action == "jump")
        for action in actions
    ]
    turns[-1].reward = float(outcome is Outcome.SUCCESS)
    return Trajectory("x", task, 0, member, 0, 8, 3, "vllm", [5], "Go.", turns, outcome)


START = [played(7, 1, Outcome.TRUNCATED, "jump", "go"), played(7, 0, Outcome.SUCCESS, "go")]
END = [played(7, 0, Outcome.SUCCESS, "go"), played(8, 0, Outcome.FAILED, "go")]


def test_actions_outcomes_and_refusals_are_kept_without_failed_episodes(tmp_path: Path) -> None:
    rows = episode_rows("long", 2, {"start": START, "last, test, horizon 8": END})
    write_episodes(tmp_path / "episodes.parquet", rows, {("long", 2)})
    frame = pd.read_parquet(tmp_path / "episodes.parquet")
    assert list(frame["evaluation"]) == ["last, test, horizon 8", "start", "start"]
    assert list(frame["member"]) == [0, 0, 1]
    assert list(frame["outcome"]) == ["success", "success", "truncated"]
    assert list(frame["reward"]) == [1.0, 1.0, 0.0]
    assert [list(each) for each in frame["actions"]] == [["go"], ["go"], ["jump", "go"]]
    assert [list(each) for each in frame["refused"]] == [[False], [False], [True, False]]


def test_episodes_of_runs_on_other_machines_stay_and_others_are_replaced(tmp_path: Path) -> None:
    file, runs = tmp_path / "episodes.parquet", {("long", 0), ("long", 1)}
    both = [*episode_rows("long", 0, {"start": START}), *episode_rows("long", 1, {"start": START})]
    write_episodes(file, both, runs)
    before = file.read_bytes()
    write_episodes(file, both[2:], runs)
    assert file.read_bytes() == before
    write_episodes(file, [], {("long", 1)})
    assert set(pd.read_parquet(file)["seed"]) == {1}
    write_episodes(file, episode_rows("long", 1, {"end": END}), runs)
    assert list(pd.read_parquet(file)["evaluation"]) == ["end"]


def test_a_study_without_episodes_has_no_file(tmp_path: Path) -> None:
    write_episodes(tmp_path / "episodes.parquet", [], {("long", 0)})
    assert not (tmp_path / "episodes.parquet").exists()
