"""Tests of AgentGym-RL's figures: last-turn value, Avg@n and Pass@n, overall and by category."""

from __future__ import annotations

import pytest

from tasks.evaluation.agentgym_figures import (
    HEADER,
    average_at_n,
    figure_rows,
    last_value,
    pass_at_n,
)
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

TWO_ACTIONS = "Action:\nturn left\nAction:\nturn right"


def episode(
    world: str, *rewards: float, task: int = 0, last: str = "Action:\ngo", malformed: bool = False
) -> Trajectory:
    turns = [Turn([], [], "go", reward=reward, message="Action:\ngo") for reward in rewards]
    if turns:
        turns[-1].message, turns[-1].malformed = last, malformed
    return Trajectory(world, task, 0, 0, 0, 30, 0, "oracle", turns=turns, outcome=Outcome.FINISHED)


@pytest.mark.parametrize(
    ("played", "value"),
    [
        (episode("textcraft", 0, 0, 1), 1.0),
        (episode("searchqa", 1, 0), 0.0),
        (episode("babyai", 0.25, 0.25), 0.5),
        (episode("sciworld", 0.4, -1.4), -1.0),
        (episode("sciworld", 0.4, 0.0, last=TWO_ACTIONS, malformed=True), 0.4),
        (episode("babyai", 0.4, 0.0, last=TWO_ACTIONS, malformed=True), 0.0),
        (episode("babyai", 0.4, 0.0, last="no action", malformed=True), 0.4),
        (episode("textcraft"), 0.0),
    ],
)
def test_episode_value_is_agentgyms_value_of_the_last_turn(
    played: Trajectory, value: float
) -> None:
    assert last_value(played) == pytest.approx(value)


def test_average_covers_all_episodes_and_pass_counts_values_above_0() -> None:
    values = {0: [0.0, 0.1], 1: [-1.0, 0.0], 2: [1.0, 1.0]}
    assert average_at_n(values).value == pytest.approx(1.1 / 6)
    assert pass_at_n(values).value == pytest.approx(2 / 3)


def test_categories_have_separate_rows() -> None:
    played = [
        episode("textcraft", 1.0, task=0),
        episode("textcraft", 0.0, task=1),
        episode("textcraft", 1.0, task=2),
    ]
    rows = [
        dict(zip(HEADER, row, strict=True))
        for row in figure_rows("test", played, {0: "wood", 1: "stone"})
    ]
    assert [row[HEADER[0]] for row in rows] == ["test", "- stone", "- wood"]
    assert [row["tasks"] for row in rows] == ["3", "1", "1"]
    assert [row["Pass@n"].split(" ")[0] for row in rows] == ["66.7", "0.0", "100.0"]
    assert {row["n"] for row in rows} == {"1"}
    assert figure_rows("test", [], {}) == []
