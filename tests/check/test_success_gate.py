"""Tests of the success-gated schedule: when it advances and retreats, and on which metrics."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from configs.experiment import Experiment
from configs.recipe import RecipeError, load_recipe
from configs.success_gate import QUANTILE, score_bounds
from tasks.curriculum.horizon import horizon_at, phases
from tasks.tracking.step_metrics_file import Steps

GATE = {
    "kind": "success-gated",
    "horizons": [4, 8, 16],
    "threshold": 0.5,
    "window": 3,
    "cut_share": 0.3,
}


def gated(off_policy: int = 0, **fields: Any) -> Experiment:
    overrides = {
        "curriculum": {**GATE, **fields},
        "algorithm.steps": 30,
        "rollout.max_off_policy_steps": off_policy,
    }
    return load_recipe("textcraft", overrides)


def played(
    experiment: Experiment,
    successes: list[float],
    cut: float = 0.0,
    groups: float = 16.0,
    history: Steps | None = None,
) -> Steps:
    """Simulate steps with these success rates, and return their metrics.

    The schedule sets the horizon of each step.
    """
    history = dict(history or {})
    for success in successes:
        step = len(history)
        horizon = float(horizon_at(experiment, step, history))
        history[step + 1] = {
            "rollout/horizon": horizon,
            "rollout/groups": groups,
            "rollout/success": success,
            "rollout/cut_by_horizon": cut,
        }
    return history


def horizons(experiment: Experiment, history: Steps) -> list[float]:
    return [history[step]["rollout/horizon"] for step in sorted(history)]


def test_horizon_advances_when_the_lower_bound_of_success_passes_the_threshold() -> None:
    experiment = gated()
    low, _ = score_bounds(0.625, 48)
    assert 0.5 < low < 0.51
    assert horizons(experiment, played(experiment, [0.625] * 5)) == [4, 4, 4, 8, 8]
    assert horizons(experiment, played(experiment, [0.6] * 8)) == [4] * 8  # its lower bound is 0.48
    assert (
        horizons(experiment, played(experiment, [0.625] * 8, groups=8)) == [4] * 8
    )  # with fewer groups the lower bound is below the threshold


def test_score_bounds_equal_those_of_wilson() -> None:
    expected = stats.binomtest(30, 48).proportion_ci(confidence_level=0.9, method="wilson")
    assert score_bounds(30 / 48, 48) == pytest.approx((expected.low, expected.high), abs=1e-4)
    assert pytest.approx(stats.norm.ppf(0.95), abs=1e-3) == QUANTILE


def test_horizon_advances_if_it_cuts_episodes_and_success_stops_rising() -> None:
    experiment = gated()
    assert horizons(experiment, played(experiment, [0.2] * 8, cut=0.4)) == [4] * 6 + [8, 8]
    assert (
        horizons(experiment, played(experiment, [0.2] * 8, cut=0.1)) == [4] * 8
    )  # the horizon cuts too few episodes
    assert (
        horizons(experiment, played(experiment, [0.05 * n for n in range(8)], cut=0.4)) == [4] * 8
    )  # success still rises


def test_schedule_stays_at_the_last_horizon() -> None:
    experiment = gated()
    assert horizons(experiment, played(experiment, [0.9] * 10)) == [4] * 3 + [8] * 3 + [16] * 4


def test_horizon_retreats_after_a_collapse_only_if_enabled() -> None:
    collapsing = [0.9] * 3 + [0.02] * 4
    assert horizons(gated(), played(gated(), collapsing)) == [4] * 3 + [8] * 4
    experiment = gated(retreat_below=0.2)
    assert horizons(experiment, played(experiment, collapsing)) == [4] * 3 + [8] * 3 + [4]
    assert (
        horizons(experiment, played(experiment, [0.02] * 6)) == [4] * 6
    )  # no horizon is below the first


def test_phases_of_finished_steps_are_final_and_the_current_horizon_is_assumed_to_stay() -> None:
    experiment = gated()
    history = played(experiment, [0.9, 0.9, 0.9, 0.1])
    assert [(p.horizon, p.first_step, p.end_step) for p in phases(experiment, history)] == [
        (4, 0, 3),
        (8, 3, 30),
    ]
    assert [(p.horizon, p.end_step) for p in phases(experiment, {})] == [(4, 30)]
    final = phases(experiment, played(experiment, [0.9] * 27))
    assert [(p.horizon, p.end_step) for p in final] == [(4, 3), (8, 6), (16, 30)]


def test_horizon_of_a_step_depends_only_on_earlier_steps() -> None:
    experiment = gated()
    history = played(experiment, [0.9] * 12)
    for step in range(12):
        before = {done: metrics for done, metrics in history.items() if done <= step}
        assert (
            horizon_at(experiment, step, before)
            == horizon_at(experiment, step, history)
            == history[step + 1]["rollout/horizon"]
        )


def test_a_batch_that_is_played_ahead_has_the_horizon_of_its_step() -> None:
    """Plan the batch of step s after s - 2 steps. The steps between must have no effect."""
    experiment = gated(off_policy=2)
    history = played(experiment, [0.9] * 14)
    assert horizons(experiment, history) == [4] * 5 + [8] * 5 + [16] * 4
    for step in range(2, 14):
        planned = horizon_at(
            experiment,
            step,
            {done: metrics for done, metrics in history.items() if done <= step - 2},
        )
        assert planned == horizon_at(experiment, step, history)


def test_steps_without_groups_do_not_change_the_horizon() -> None:
    experiment = gated()
    history: Steps = {step: {"rollout/horizon": 4.0, "rollout/groups": 0.0} for step in range(1, 9)}
    assert horizon_at(experiment, 8, history) == 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"horizons": [8, 4]}, ("horizons", "[8, 4]")),
        ({"retreat_below": 0.6}, ("retreat_below", "0.6", "threshold", "0.5")),
        ({"threshold": 1.2}, ("curriculum.threshold", "1.2")),
    ],
)
def test_invalid_fields_are_refused_with_name_and_value(
    fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(RecipeError) as refused:
        gated(**fields)
    assert all(name in str(refused.value) for name in named)


@pytest.mark.parametrize("method", ["sft", "dpo", "agentevol"])
def test_methods_without_episodes_in_most_steps_cannot_be_gated(method: str) -> None:
    with pytest.raises(RecipeError, match=rf"curriculum.kind \(success-gated\).*{method}"):
        load_recipe("textcraft", {"curriculum": GATE, "algorithm.name": method})
