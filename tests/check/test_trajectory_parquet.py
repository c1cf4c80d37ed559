"""Tests of trajectory files: round trip, derived columns, atomic replacement and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import (
    TrajectoryFileError,
    read_trajectories,
    write_trajectories,
)

floats = st.floats(allow_nan=False)
texts = st.text(max_size=20)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
whole_numbers = st.integers(0, 2**63 - 1)
turns = st.builds(
    Turn,
    tokens=ids,
    log_probabilities=st.lists(floats, max_size=5),
    action=texts,
    observation=texts,
    observation_tokens=ids,
    reward=floats,
    malformed=st.booleans(),
    refused=st.none() | st.booleans(),
    generate_seconds=floats,
    environment_seconds=floats,
    message=texts,
    policy_version=whole_numbers,
    cut=texts,
    state_key=texts,
    began=floats,
)
trajectories = st.builds(
    Trajectory,
    environment=texts,
    task=whole_numbers,
    group=whole_numbers,
    member=whole_numbers,
    seed=whole_numbers,
    horizon=whole_numbers,
    policy_version=whole_numbers,
    engine=texts,
    prompt=ids,
    first_observation=texts,
    turns=st.lists(turns, max_size=3),
    outcome=st.sampled_from(Outcome),
    reason=texts,
    attempts=whole_numbers,
    seconds=floats,
    began=floats,
)


def trajectory(**changes: object) -> Trajectory:
    turn = Turn(
        [5, 6],
        [-0.1, -1 / 3],
        "get 1 oak_log",
        "Got 1 oak_log",
        [7],
        reward=0.25,
        generate_seconds=0.1,
        environment_seconds=0.2,
    )
    last = Turn([8], [-2.5], "craft 4 oak_planks", "Crafted", reward=0.75)
    built = Trajectory(
        "textcraft",
        3,
        0,
        1,
        11,
        8,
        2,
        "vllm",
        [1, 2],
        "Goal: oak_planks",
        [turn, last],
        Outcome.SUCCESS,
        "",
        1,
        1.5,
    )
    return replace(built, **changes)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(trajectories, max_size=4))
def test_trajectory_file_round_trip(
    tmp_path_factory: pytest.TempPathFactory, batch: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("storage") / "batch.parquet"
    write_trajectories(path, batch)
    assert read_trajectories(path) == batch


def test_trajectory_file_has_derived_columns(tmp_path: Path) -> None:
    path = tmp_path / "step" / "batch.parquet"
    write_trajectories(
        path, [trajectory(), trajectory(turns=[], outcome=Outcome.FAILED, reason="server gone")]
    )
    frame = pd.read_parquet(path)
    assert frame["reward"].tolist() == [1.0, 0.0]
    assert frame["succeeded"].tolist() == [True, False]
    assert frame["n_turns"].tolist() == [2, 0]
    assert frame["turns"][0][1]["action"] == "craft 4 oak_planks"


def test_trajectory_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write_trajectories(path, [trajectory()])
    write_trajectories(path, [trajectory(task=4)])
    assert [each.task for each in read_trajectories(path)] == [4]
    assert list(tmp_path.iterdir()) == [path]


def test_invalid_value_names_its_column_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write_trajectories(path, [trajectory()])
    with pytest.raises(TrajectoryFileError, match="seed"):
        write_trajectories(path, [trajectory(seed=2**63)])
    with pytest.raises(TrajectoryFileError, match="first_observation"):
        write_trajectories(path, [trajectory(first_observation="\ud800")])
    assert read_trajectories(path) == [trajectory()]
    assert list(tmp_path.iterdir()) == [path]


def test_file_with_other_columns_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    pd.DataFrame({"task": [1.5], "answer": ["x"]}).to_parquet(path)
    with pytest.raises(TrajectoryFileError, match=r"environment.*answer.*task"):
        read_trajectories(path)


def test_damaged_file_is_refused_and_a_missing_one_raises_file_not_found(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    path.write_bytes(b"PAR1 cut short")
    with pytest.raises(TrajectoryFileError, match=r"batch\.parquet"):
        read_trajectories(path)
    with pytest.raises(FileNotFoundError):
        read_trajectories(tmp_path / "absent.parquet")
