"""Tests of the names and values that MLflow accepts, and of the sample of stored traces."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.experiment import Experiment
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.tracking.metrics import metric_name, usable_metrics
from tasks.tracking.runs import flatten
from tasks.tracking.traces import sample_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rollout/success", "rollout/success"),
        ("pass@8", "pass_at_8"),
        ("kl=0", "kl_0"),
        ("/a//b/../c/", "a/c"),
        ("größe", "gr__e"),
        ("..", "_"),
        ("", "_"),
    ],
)
def test_metric_names_are_converted_for_mlflow(name: str, expected: str) -> None:
    assert metric_name(name) == expected


@settings(deadline=None)
@given(st.text(max_size=30))
def test_converted_metric_names_are_valid_and_stable(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name  # imported here: it takes two seconds

    clean = metric_name(name)
    _validate_metric_name(clean)
    assert metric_name(clean) == clean


def test_undefined_metric_values_are_dropped_and_counted() -> None:
    metrics = {"a": 1, "b": None, "c": math.nan, "d": -math.inf, "e": True}
    assert usable_metrics(metrics) == ({"a": 1.0, "e": 1.0}, 3)


def test_colliding_metric_names_are_refused() -> None:
    with pytest.raises(ValueError, match="pass_at_8"):
        usable_metrics({"pass@8": 0.5, "pass_at_8": 0.6})


def test_experiment_is_flattened_to_dotted_parameters() -> None:
    experiment = Experiment.model_validate(
        {
            "curriculum": {"kind": "stepwise", "horizons": [4, 8, 16], "every": 10},
            "algorithm": {"steps": 40},
        }
    )
    flat = dict(flatten(experiment.model_dump()))
    assert flat["curriculum.horizons"] == "[4, 8, 16]"
    assert flat["algorithm.steps"] == "40"
    assert flat["policy.model"] == "starter"
    assert flat["environment.n_train_tasks"] == "null"
    assert flat["policy.instruction"] == "true"


@given(st.integers(5990, 6100), st.text(max_size=3))
def test_long_values_are_cut_and_stay_distinct(length: int, more: str) -> None:
    text = "é" * length
    (_, one), (_, two) = [next(iter(flatten({"x": value}))) for value in (text, text + more)]
    assert len(one) <= 6000
    assert (one == two) == (not more)


def episode(task: int, outcome: Outcome) -> Trajectory:
    return Trajectory("textcraft", task, 0, 0, 0, 4, 0, "vllm", outcome=outcome)


def test_trace_sample_covers_tasks_and_outcomes_evenly() -> None:
    batch = [episode(task, Outcome.TRUNCATED) for task in range(6) for _ in range(8)]
    for place in (3, 4, 11, 20):  # successes of the first three tasks
        batch[place] = episode(batch[place].task, Outcome.SUCCESS)
    batch[40] = episode(batch[40].task, Outcome.FAILED)
    picked = sample_of(batch, 12)
    assert sorted(each.task for each in picked) == sorted([*range(6)] * 2)
    assert Counter(each.outcome for each in picked) == {
        Outcome.SUCCESS: 4,
        Outcome.FAILED: 1,
        Outcome.TRUNCATED: 7,
    }


def test_trace_sample_of_many_tasks_has_no_duplicates() -> None:
    batch = [
        episode(task, Outcome.SUCCESS if task == 15 else Outcome.TRUNCATED)
        for task in range(16)
        for _ in range(4)
    ]
    picked = sample_of(batch, 12)
    assert len({each.task for each in picked}) == 12
    assert Outcome.SUCCESS in {each.outcome for each in picked}


def test_trace_sample_starts_with_the_rarest_outcomes() -> None:
    batch = [episode(i, Outcome.SUCCESS) for i in range(8)] + [
        episode(8, Outcome.TRUNCATED),
        episode(9, Outcome.FAILED),
    ]
    picked = sample_of(batch, 5)
    assert [each.task for each in picked] == [8, 9, 0, 1, 2]
    assert len(sample_of(batch, 100)) == 10
    assert sample_of([], 3) == []


def test_flattening_keeps_every_leaf() -> None:
    nested: dict[str, Any] = {"a": {"b": {"c": 1}, "d": "text"}, "e": None}
    assert dict(flatten(nested)) == {"a.b.c": "1", "a.d": "text", "e": "null"}
