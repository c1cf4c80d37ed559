"""Tests of evaluation results: estimates, bounds, break-downs, metrics and files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluation.before_after import BeforeAfter, before_after_table
from tasks.evaluation.benchmark import (
    EvaluationFileError,
    EvaluationResult,
    IncompleteEvaluationError,
    check_complete,
    evaluate,
    incomplete_note,
    read_evaluation,
    write_evaluation,
)
from tasks.evaluation.statistics import Tally, pass_at_k, success_rate
from tasks.evaluation.study_results import StudyRun
from tasks.rollout.trajectory import Outcome, Trajectory, Turn


def episode(task: int, outcome: Outcome, turns: int = 3, reward: float | None = None) -> Trajectory:
    score = float(outcome is Outcome.SUCCESS) if reward is None else reward
    played = [Turn([1], [-0.5], "look") for _ in range(turns - 1)] + [
        Turn([1], [-0.5], "craft", reward=score)
    ]
    return Trajectory("textcraft", task, task, 0, 0, 16, 5, "vllm", turns=played, outcome=outcome)


def measured(
    trajectories: list[Trajectory], tags: dict[int, str] | None = None
) -> EvaluationResult:
    return evaluate(trajectories, label="start", step=0, horizon=16, tags=tags)


episodes = st.builds(episode, st.integers(0, 5), st.sampled_from(Outcome), st.integers(1, 9))


def test_evaluation_counts_outcomes_turns_and_tokens() -> None:
    result = measured(
        [
            episode(0, Outcome.SUCCESS, turns=4),
            episode(0, Outcome.TRUNCATED, turns=16),
            episode(1, Outcome.FINISHED, turns=2, reward=0.5),
            episode(1, Outcome.TRUNCATED, turns=16),
        ]
    )
    assert result.tallies == {0: Tally(1, 2), 1: Tally(0, 2)}
    assert result.success == success_rate(result.tallies)
    assert (result.success.value, result.reward.value, result.turns, result.truncated) == (
        0.25,
        0.375,
        9.5,
        0.5,
    )
    assert {k: estimate.value for k, estimate in result.pass_at.items()} == {1: 0.25, 2: 0.5}


def test_a_partial_score_is_not_a_success() -> None:
    result = measured([episode(task, Outcome.FINISHED, reward=0.9) for task in range(4)])
    assert (result.success.value, result.pass_at[1].value) == (0.0, 0.0)
    assert result.reward.value == pytest.approx(0.9)


@settings(deadline=None)
@given(st.lists(episodes, min_size=1, max_size=20), st.data())
def test_bounds_contain_the_complete_success_for_any_missing_episodes(
    played: list[Trajectory], data: st.DataObject
) -> None:
    complete = [each for each in played if each.outcome is not Outcome.FAILED]
    lost = data.draw(st.sets(st.integers(0, len(played) - 1)))
    damaged = [
        replace(each, outcome=Outcome.FAILED) if i in lost else each
        for i, each in enumerate(complete)
    ]
    truth, found = measured(complete), measured(damaged)
    assert found.failed == sum(each.outcome is Outcome.FAILED for each in damaged)
    assert found.complete == (found.failed == 0)
    if found.complete:
        assert repr(found) == repr(truth)  # compared as text, since NaN differs from itself
        return
    low, high = found.bounds
    assert low.value - 1e-12 <= truth.success.value <= high.value + 1e-12
    assert low.low - 1e-12 <= truth.success.low
    assert truth.success.high <= high.high + 1e-12
    assert found.tasks == truth.tasks


def test_incomplete_evaluation_publishes_no_estimate() -> None:
    result = measured(
        [episode(0, Outcome.SUCCESS), episode(0, Outcome.FAILED), episode(1, Outcome.FAILED)],
        tags={0: "depth_1"},
    )
    assert (result.complete, result.scored, result.failed, result.missing) == (
        False,
        1,
        2,
        {0: 1, 1: 1},
    )
    assert all(
        math.isnan(each)
        for each in (result.success.value, result.reward.value, result.turns, result.truncated)
    )
    assert result.pass_at == result.by_tag == result.rewards == {}
    low, high = result.bounds
    assert (low.value, high.value) == (0.25, 1.0)
    assert result.metrics() == {
        "evaluation/success_if_missing_failed": 0.25,
        "evaluation/success_if_missing_succeeded": 1.0,
        "evaluation/episodes": 1.0,
        "evaluation/failed_episodes": 2.0,
    }
    with pytest.raises(IncompleteEvaluationError) as refused:
        check_complete([measured([episode(0, Outcome.SUCCESS)]), result], "the comparison")
    assert refused.value.missing == {"start": 2}
    for refuse in (
        lambda: StudyRun("a", 0, [result], {}),
        lambda: before_after_table([BeforeAfter({"x": result}, {}, None)], {}),
    ):
        with pytest.raises(IncompleteEvaluationError):
            refuse()
    assert incomplete_note([measured([episode(0, Outcome.SUCCESS)])]) == ""


def test_success_is_broken_down_by_tag() -> None:
    played = [
        episode(task, Outcome.SUCCESS if task < 2 else Outcome.TRUNCATED) for task in range(5)
    ]
    result = measured(played, tags={0: "depth_1", 1: "depth_2", 2: "depth_2", 3: "depth_2"})
    assert {tag: (estimate.value, estimate.n) for tag, estimate in result.by_tag.items()} == {
        "depth_1": (1.0, 1),
        "depth_2": (1 / 3, 3),
    }


def test_pass_at_k_is_limited_to_the_samples_of_most_tasks() -> None:
    played = [episode(task, Outcome.SUCCESS) for task in range(3) for _ in range(6 if task else 5)]
    result = measured(played)
    assert list(result.pass_at) == [1, 2, 4, 6]
    assert result.pass_at[6] == pass_at_k(result.tallies, 6)
    assert result.pass_at[6].n == 2


def test_metric_names_are_valid_in_the_tracker() -> None:
    metrics = measured(
        [episode(0, Outcome.SUCCESS), episode(1, Outcome.TRUNCATED)], tags={0: "depth_1"}
    ).metrics()
    assert metrics["evaluation/success"] == metrics["evaluation/pass_at_1"] == 0.5
    assert metrics["evaluation/success_low"] < 0.5 < metrics["evaluation/success_high"]
    assert metrics["evaluation/success_depth_1"] == 1.0
    assert metrics["evaluation/failed_episodes"] == 0


@settings(max_examples=30, deadline=None)
@given(played=st.lists(episodes, max_size=12))
def test_evaluation_file_round_trip(
    tmp_path_factory: pytest.TempPathFactory, played: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("evaluation") / "start.json"
    result = measured(played, tags={0: "easy"})
    write_evaluation(path, result)
    assert repr(read_evaluation(path)) == repr(result)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_evaluation_without_scored_episodes_has_unknown_values(tmp_path: Path) -> None:
    result = measured([episode(0, Outcome.FAILED)])
    assert (result.scored, result.failed, result.success.n, result.pass_at) == (0, 1, 0, {})
    assert math.isnan(result.success.value)
    assert math.isnan(result.turns)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"label": "start"}'])
def test_file_without_an_evaluation_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "start.json"
    path.write_text(content)
    with pytest.raises(EvaluationFileError, match=r"start\.json"):
        read_evaluation(path)
