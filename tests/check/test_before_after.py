"""Tests of the table of results before and after RL, for one seed and for several."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from configs.evaluation_grid import EvaluationGrid
from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from flows.before_after import before_after, measured, results
from flows.results import Evaluation
from tasks.evaluation.before_after import BeforeAfter, before_after_table, compared_sides
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.bootstrap import bootstrap_mean
from tasks.evaluation.statistics import Tallies, Tally, success_rate
from tasks.tracking.run_folder import RunFileError, RunFolder
from tasks.training.collapse import TrainingCollapsedError

CELL = "wood-test, horizon 8, temperature 1"


def result(tallies: Tallies) -> EvaluationResult:
    rate = success_rate(tallies)
    return EvaluationResult(
        "start", 0, 8, 8 * len(tallies), 0, rate, rate, 4.0, 0.0, tallies=dict(tallies)
    )


def solved(*successes: int) -> dict[int, Tally]:
    return {task: Tally(count, 8) for task, count in enumerate(successes)}


def test_table_has_columns_for_before_after_further_cloning_and_scripted_policies() -> None:
    one = BeforeAfter(
        {CELL: result(solved(2, 4, 6))},
        {CELL: result(solved(4, 6, 8))},
        {CELL: result(solved(4, 4, 4))},
        "run-1a2b",
        seconds=120,
        cloning_seconds=150,
    )
    table = before_after_table([one], {"wood-test": {"oracle": result(solved(8, 8, 8))}})
    assert table.splitlines()[-1] == "| `run-1a2b` | 2.0 | 2.5 |"
    header, _, row = table.splitlines()[:3]
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "evaluation", "before RL", "after RL", "after - before", "further behaviour cloning", "after RL - further cloning", "oracle",
    ]  # fmt: skip
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == [CELL, "50.0 %", "75.0 %"]
    assert cells[3].startswith("+25.0")
    assert (cells[4], cells[5].split()[0]) == ("50.0 %", "+25.0")
    assert cells[6].startswith("100.0 %")


def test_a_seed_beside_several_seeds_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"seeds\.starter"):
        before_after.fn("textcraft", {"seeds": {"starter": 7}}, 2)


def test_several_seeds_are_compared_over_seeds_and_tasks() -> None:
    befores = [result(solved(2, 4, 6)), result(solved(1, 3, 7))]
    afters = [result(solved(4, 6, 7)), result(solved(2, 6, 8))]
    estimate = compared_sides(befores, afters, "success")
    assert math.isclose(estimate.value, (5 / 24 + 5 / 24) / 2)
    assert estimate.low < estimate.value < estimate.high
    assert estimate.n == 2


def test_partial_rewards_add_a_row_of_mean_rewards() -> None:
    def rewarded(*rewards: float) -> EvaluationResult:
        plain = result(solved(*(8 * (each == 1) for each in rewards)))
        return replace(plain, reward=bootstrap_mean(rewards), rewards=dict(enumerate(rewards)))

    one = BeforeAfter(
        {CELL: rewarded(0.25, 0.5, 1.0)},
        {CELL: rewarded(0.5, 1.0, 1.0)},
        {CELL: rewarded(0.5, 0.5, 1.0)},
    )
    two = BeforeAfter(
        {CELL: rewarded(0.25, 0.25, 0.5)},
        {CELL: rewarded(0.25, 1.0, 1.0)},
        {CELL: rewarded(0.25, 0.5, 1.0)},
    )
    rows = before_after_table(
        [one, two], {"wood-test": {"oracle": rewarded(1.0, 1.0, 0.5)}}
    ).splitlines()[2:4]
    cells = [cell.strip() for cell in rows[1].strip("|").split("|")]
    assert cells[:3] == [f"{CELL}: mean reward", "0.458", "0.792"]
    assert cells[3].startswith("+0.333 [")
    assert (cells[4], cells[5].split()[0], cells[6]) == ("0.625", "+0.167", "0.833")
    estimate = compared_sides([one.start[CELL]], [one.end[CELL]], "reward")
    assert estimate.low <= estimate.value == 0.25 <= estimate.high
    assert estimate.n == 3


def test_policy_without_cloning_has_no_column_for_further_cloning() -> None:
    one = BeforeAfter({CELL: result(solved(2, 4))}, {CELL: result(solved(4, 6))}, None)
    assert "cloning" not in before_after_table([one], {}).splitlines()[0]


def test_policies_with_the_same_folder_name_are_evaluated_in_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def evaluated(grid: EvaluationGrid, folder: Path) -> Evaluation:
        folders.append(folder)
        return Evaluation(folder, grid, {}, {})

    monkeypatch.setattr("flows.before_after.evaluate", evaluated)
    trained = RunFolder(tmp_path, load_recipe("textcraft"))
    for run in ("earlier", "this", "this"):
        results(trained, f"{run}/checkpoints/step-000036", InfraSettings(runs=tmp_path))
    assert folders[0] != folders[1] == folders[2]


def test_collapsed_run_without_a_checkpoint_is_refused_with_the_reason(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, load_recipe("textcraft"))
    run.path.mkdir()
    run.note_collapse(TrainingCollapsedError("fell at step 17", 14))
    with pytest.raises(RunFileError, match="fell at step 17"):
        measured(run, InfraSettings(runs=tmp_path))


def test_the_textcraft_recipe_uses_its_test_lists_only_as_final_tasks() -> None:
    experiment = load_recipe("textcraft")
    assert experiment.evaluation.tasks == "one-command-validation"
    assert experiment.evaluation.final_tasks == ("one-command-test", "one-command-fresh-test")
    assert experiment.rollout.temperature == experiment.evaluation.temperature == 1.0
