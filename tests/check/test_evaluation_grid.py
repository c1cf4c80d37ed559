"""Tests of evaluations at several horizons and temperatures: cells, command, table and picture."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from configs.evaluation_grid import EvaluationGrid
from configs.recipe import RecipeError
from flows import api
from flows.commands.evaluate import evaluation_arguments
from flows.evaluate import comparable
from tasks.evaluation.benchmark import (
    EvaluationFileError,
    EvaluationResult,
    IncompleteEvaluationError,
    evaluate,
    write_evaluation,
)
from tasks.evaluation.grid_report import draw_grid, grid_tables
from tasks.evaluation.statistics import Tally, pass_all_k, pass_at_k
from tasks.rollout.trajectory import Outcome, Trajectory, Turn


def grid(**fields: Any) -> EvaluationGrid:
    return EvaluationGrid.model_validate(
        {"environment": "textcraft", "source": {"kind": "oracle"}, **fields}
    )


def played(
    task: int,
    member: int,
    outcome: Outcome,
    rewards: list[float],
    malformed: bool = False,
    refused: bool | None = False,
) -> Trajectory:
    turns = [
        Turn([1, 2, 3], [-0.1] * 3, "act", reward=reward, malformed=malformed, refused=refused)
        for reward in rewards
    ]
    return Trajectory(
        "textcraft", task, task, member, 0, 8, 0, "test", turns=turns, outcome=outcome
    )


def test_every_list_is_played_at_every_horizon_and_temperature() -> None:
    cells = grid(tasks=["wood-test", (1, 2, 3)], horizons=[8, 16], temperatures=[1.0, 0.25]).cells()
    assert len(cells) == 8
    cell = cells["3 given tasks, horizon 16, temperature 0.25"]
    assert (cell.tasks, cell.horizon, cell.temperature) == ((1, 2, 3), 16, 0.25)


def test_given_lists_of_the_same_length_have_different_names() -> None:
    names = grid(tasks=[(1, 2), (3, 4), "test"]).list_names()
    assert names == ["2 given tasks (1)", "2 given tasks (2)", "test"]


@pytest.mark.parametrize(
    ("field", "value"), [("horizons", [8, 8]), ("tasks", []), ("temperatures", [-1.0])]
)
def test_an_invalid_grid_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        grid(**{field: value})


def test_the_command_line_sets_lists_horizons_and_temperatures() -> None:
    words = [
        "textcraft",
        "--random",
        "--tasks",
        "wood-test",
        "test",
        "--horizon",
        "4",
        "9",
        "--temperature",
        "0",
        "1",
        "--samples",
        "3",
    ]
    made, out, against = evaluation_arguments([*words, "--rollout.retries", "0"])
    assert (made.source.kind, made.tasks, made.horizons, made.temperatures, made.samples) == (
        "random",
        ("wood-test", "test"),
        (4, 9),
        (0, 1),
        3,
    )
    assert made.rollout.retries == 0
    assert out is against is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["textcraft", "--oracle", "--tasks", "wood-test", "wood"], "--tasks"),
        (["textcraft", "--oracle", "--horizon", "0"], "horizons"),
        (["textcraft", "--oracle", "--against", "/nowhere"], "--against: /nowhere"),
        (["textcraft"], "--model"),
    ],
)
def test_an_invalid_command_is_refused_with_the_option(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluation_arguments(words)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "tasks", "field"),
    [("oracle", "wood", "tasks"), ("runs/x/checkpoints/step-000001", "test", "model")],
)
def test_api_error_names_the_field_and_not_a_command_line_option(
    policy: str, tasks: str, field: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        api.evaluate("textcraft", policy, tasks=tasks)
    assert str(refused.value).startswith(f"{field}: ")


def test_success_counts_only_full_scores_and_the_reward_includes_partial_ones() -> None:
    episodes = [
        played(0, 0, Outcome.SUCCESS, [0.4, 0.6]),
        played(0, 1, Outcome.FINISHED, [0.9]),
        played(1, 0, Outcome.TRUNCATED, [0.5, 0.0, 0.0], malformed=True),
        played(2, 0, Outcome.SUCCESS, [1.0], refused=None),
        played(2, 1, Outcome.SUCCESS, [1.0], refused=True),
    ]
    result = evaluate(
        episodes, label="x", step=0, horizon=8, tags={0: "depth 1", 1: "depth 2", 2: "depth 1"}
    )
    assert result.tallies == {0: Tally(1, 2), 1: Tally(0, 1), 2: Tally(2, 2)}
    assert result.success.value == pytest.approx(0.5)
    assert result.reward.value == pytest.approx((0.95 + 0.5 + 1.0) / 3)
    assert result.rewards == pytest.approx({0: 0.95, 1: 0.5, 2: 1.0})
    assert (result.failed, result.scored, result.turns) == (0, 5, pytest.approx(8 / 5))
    assert result.tokens == pytest.approx(3 * 8 / 5)
    assert result.malformed == pytest.approx(3 / 8)
    assert result.repeated == pytest.approx(1 / 8)  # malformed turns have no action
    assert result.refused == pytest.approx(1 / 7)  # of the turns whose server reports refusals
    assert result.metrics()["evaluation/refused_share"] == result.refused
    assert result.pass_at[2].value == pytest.approx(1.0)  # of the two tasks with two samples
    assert result.pass_all[2].value == pytest.approx(0.5)


def test_pass_all_k_equals_a_computation_by_hand() -> None:
    tallies = {0: Tally(3, 4), 1: Tally(4, 4), 2: Tally(1, 4)}
    assert pass_all_k(tallies, 2).value == pytest.approx((3 / 6 + 1 + 0) / 3)
    assert pass_all_k(tallies, 1) == pass_at_k(tallies, 1)
    with pytest.raises(ValueError, match=r"\bk\b"):
        pass_all_k(tallies, 0)


def found(successes: list[int], horizon: int) -> EvaluationResult:
    episodes = [
        played(
            task,
            member,
            Outcome.SUCCESS if member < good else Outcome.TRUNCATED,
            [float(member < good)],
        )
        for task, good in enumerate(successes)
        for member in range(2)
    ]
    return evaluate(
        episodes, label="x", step=0, horizon=horizon, tags={0: "easy", 1: "easy", 2: "hard"}
    )


def test_table_compares_each_cell_with_that_of_another_policy(tmp_path: Path) -> None:
    made = grid(tasks=["wood-test"], horizons=[4, 8])
    names = list(made.cells())
    results = {names[0]: found([1, 1, 0], 4), names[1]: found([2, 2, 1], 8)}
    text, page = grid_tables(results, {names[1]: found([1, 1, 0], 8)})
    rows = [line for line in page.splitlines() if line.startswith("| wood-test")]
    assert "33.3 %" in rows[0]
    assert re.search(r"83\.3 % .*\+50\.0 \[", rows[1])
    assert rows[0].split(" | ")[3] == "-"  # the other policy was not evaluated in this cell
    assert "pass^2" in page
    assert "easy" in text
    draw_grid(tmp_path / "grid.png", made, results)
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


def test_evaluations_of_other_worlds_or_cells_are_not_comparable(tmp_path: Path) -> None:
    made = grid(tasks=["wood-test"], horizons=[4])
    write_evaluation(tmp_path / "cell" / "evaluation.json", found([1, 1, 0], 4))

    def other(name: str, **fields: Any) -> Path:
        index = {"grid": grid(**fields).model_dump(mode="json"), "cells": {name: "cell"}}
        (tmp_path / "evaluation.json").write_text(json.dumps(index))
        return tmp_path

    cell = next(iter(made.cells()))
    assert comparable(made, other(cell)) == {cell: found([1, 1, 0], 4)}
    with pytest.raises(EvaluationFileError, match=r"environment\.name"):
        comparable(made, other(cell, environment="babyai"))
    with pytest.raises(EvaluationFileError, match="horizon 9"):
        comparable(made, other("test, horizon 9, temperature 1"))
    with pytest.raises(EvaluationFileError, match="nowhere"):
        comparable(made, tmp_path / "nowhere")


def test_an_incomplete_evaluation_is_marked_has_bounds_and_is_not_compared(tmp_path: Path) -> None:
    made = grid(tasks=["wood-test"], horizons=[4])
    name = next(iter(made.cells()))
    complete = found([1, 1, 0], 4)
    episodes = [
        played(task, 0, Outcome.SUCCESS if task else Outcome.FAILED, [1.0]) for task in range(4)
    ]
    broken = evaluate(episodes, label=name, step=0, horizon=4)
    for text in (
        *grid_tables({name: broken}),
        *grid_tables({name: broken}, {name: complete}),
    ):
        first = text.splitlines()[0]
        assert "INCOMPLETE" in first
        assert "1 of 4" in first
        [row] = [line for line in text.splitlines() if name in line and "INCOMPLETE" not in line]
        assert "75.0 % to 100.0 %" in row
    _, page = grid_tables({name: broken}, {name: complete})
    assert page.splitlines()[-3].split(" | ")[3].strip() == "-"
    draw_grid(tmp_path / "grid.png", made, {name: broken})
    write_evaluation(tmp_path / "cell" / "evaluation.json", broken)
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"grid": made.model_dump(mode="json"), "cells": {name: "cell"}})
    )
    with pytest.raises(IncompleteEvaluationError) as refused:
        comparable(made, tmp_path)
    assert refused.value.missing == {name: 1}
