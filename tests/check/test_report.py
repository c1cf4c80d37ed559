"""Tests of evaluation reports: tables, details and learning curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest

from tasks.evaluation.benchmark import EvaluationResult, evaluate
from tasks.evaluation.learning_curve import draw_learning_curve
from tasks.evaluation.report import change, details, markdown_table, share, text_table
from tasks.evaluation.statistics import difference, mean
from tasks.evaluation.study_report import number
from tasks.rollout.trajectory import Outcome, Trajectory, Turn


def measured(
    label: str, step: int, solved: int, failed: int = 0, reward: float = 1.0
) -> EvaluationResult:
    """Evaluate 20 tasks with 4 samples each. The first `solved` tasks always succeed."""
    trajectories = []
    for task in range(20):
        for member in range(4):
            outcome = Outcome.SUCCESS if task < solved else Outcome.TRUNCATED
            turns = [Turn([1], [-0.5], "craft", reward=reward if task < solved else 0.0)]
            trajectories.append(
                Trajectory(
                    "textcraft",
                    task,
                    task,
                    member,
                    0,
                    16,
                    step,
                    "vllm",
                    turns=turns,
                    outcome=outcome,
                )
            )
    trajectories += [Trajectory("textcraft", 0, 0, 9, 0, 16, step, "vllm") for _ in range(failed)]
    return evaluate(trajectories, label=label, step=step, horizon=16)


def test_the_table_has_a_row_for_each_measurement_and_its_change_from_the_start() -> None:
    start, end = measured("start", 0, 6), measured("end", 40, 10)
    lines = text_table([start, end]).splitlines()
    assert lines[0].split() == ["step", "success", "change", "pass@4", "turns", "cut", "episodes"]
    assert share(start.success) in lines[2]
    assert change(difference(start.tallies, end.tallies)) in lines[3]
    assert "+20.0 [" in lines[3]
    assert "[" not in lines[2].replace(share(start.success), "").replace(
        share(start.pass_at[4]), ""
    )  # the start has no change
    assert len({len(lines[0]), len(lines[2]), len(lines[3])}) == 1  # the columns line up


def test_displayed_interval_of_a_share_is_clipped_to_0_and_100_percent() -> None:
    estimate = mean([0.134, 0.308])
    assert estimate.low < 0
    assert estimate.high > 1
    assert share(estimate) == "22.1 % [0.0, 100.0]"
    assert share(mean([0.2, 0.22])) == "21.0 % [8.3, 33.7]"


def test_displayed_interval_of_a_time_is_clipped_to_0() -> None:
    estimate = mean([1.0, 9.0])
    assert estimate.low < 0
    assert number(estimate) == "5.0 [0.0, 55.8]"


def test_markdown_and_text_tables_have_the_same_cells() -> None:
    results = [measured("start", 0, 6), measured("phase 1", 10, 7), measured("end", 40, 10)]
    rows = [
        line.strip("| ").split(" | ")
        for line in markdown_table(results).splitlines()
        if line.startswith("| ")
    ][2:]
    for row, line in zip(rows, text_table(results).splitlines()[2:], strict=False):
        assert all(cell.strip() in line for cell in row)
    assert [row[0] for row in rows] == ["start", "phase 1", "end"]


def test_table_is_followed_by_success_by_kind_of_task_and_by_behaviour_at_start_and_end() -> None:
    played = [
        Trajectory("searchqa", task, task, 0, 0, 6, 0, "vllm", outcome=Outcome.SUCCESS if task else Outcome.FINISHED, turns=[
            Turn([1], [-0.5], "<search>a</search>", "<information>Doc 1(Title: x) Port Ha.\nDoc 2(Title: x) Fort Je.</information>"),
            Turn([1], [-0.5], "<search>a</search>", "<information>Doc 1(Title: x) Port Ha.\nDoc 2(Title: x) Fort Je.</information>"),
            Turn([1], [-0.5], "<answer>Fort Je</answer>", "The answer is right."),
        ]) for task in range(2)
    ]  # fmt: skip
    tags = {0: "right passage first", 1: "right passage not first"}
    results = [
        evaluate(played, label=label, step=0, horizon=6, tags=tags)
        for label in ("start", "phase 1", "end")
    ]
    header, rows = details(results)
    assert header == ["", "start", "end"]
    found = {name: cells for name, *cells in rows}
    assert [cell.split(" [")[0] for cell in found["success, right passage not first"]] == [
        "100.0 %"
    ] * 2
    assert found["success, right passage first"][0].startswith("0.0 %")
    assert found["repeated turns"] == ["33.3 %"] * 2
    assert found["answers from passage 2"] == ["100.0 %"] * 2
    no_answers, source = replace(results[-1], answers_from={}), "answers from passage 2"
    [unknown] = [cells for name, *cells in details([results[0], no_answers])[1] if name == source]
    assert unknown == ["100.0 %", "-"]
    assert all(
        cell in text_table(results) and cell in markdown_table(results)
        for row in rows
        for cell in row
    )
    assert details([measured("start", 0, 6)]) == ([], [])


def test_missing_episodes_are_reported_above_the_table_and_not_compared() -> None:
    results = [measured("start", 0, 6, failed=3), measured("end", 40, 10)]
    for table in (text_table(results), markdown_table(results)):
        assert "3 of 163" in table.splitlines()[0]
        assert "+20.0 [" not in table
    assert "INCOMPLETE" not in markdown_table([measured("start", 0, 6)])


def test_reward_column_appears_if_rewards_differ_from_success() -> None:
    assert "reward" in text_table([measured("start", 0, 6, reward=0.999)])
    assert "reward" not in text_table([measured("start", 0, 6)])


def test_unknown_share_is_shown_as_unknown() -> None:
    empty = evaluate([], label="start", step=0, horizon=16)
    assert "unknown" in text_table([empty, measured("end", 40, 10)])


@pytest.mark.parametrize("phases", [[4, 8, 16], [], list(range(4, 24))])
def test_learning_curve_is_not_blank(tmp_path: Path, phases: list[int]) -> None:
    horizons = [horizon for horizon in phases for _ in range(3)]
    steps = {
        i + 1: {"rollout/success": i / 80, "rollout/reward": i / 90, "rollout/horizon": h}
        for i, h in enumerate(horizons)
    }
    results = [measured("start", 0, 6), measured("end", len(steps), 10)] if phases else []
    draw_learning_curve(tmp_path / "plots" / "curve.png", steps, results)
    draw_learning_curve(tmp_path / "empty.png", {}, [])
    picture, empty = (
        matplotlib.image.imread(tmp_path / name) for name in ("plots/curve.png", "empty.png")
    )
    assert picture.shape == (840, 1500, 4)
    assert (picture != empty).any() == bool(phases)
