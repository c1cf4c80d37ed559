"""Tests of the horizon schedules against the paper and cases worked by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.curriculum import Curriculum, FixedHorizon, LinearHorizon, StepwiseHorizon
from configs.experiment import Experiment
from configs.recipe import RecipeError, load_recipe
from tasks.curriculum.horizon import Phase, horizon_at, phases

curricula: st.SearchStrategy[Curriculum] = st.one_of(
    st.builds(FixedHorizon, horizon=st.integers(1, 50)),
    st.builds(
        StepwiseHorizon,
        horizons=st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted),
        every=st.integers(1, 20),
    ),
    st.builds(
        lambda start, delta, every, more: LinearHorizon(
            start=start, delta=delta, every=every, maximum=start + more
        ),
        st.integers(1, 10),
        st.integers(1, 5),
        st.integers(1, 9),
        st.integers(0, 30),
    ),
)
TEXTCRAFT = load_recipe("textcraft")
STEPWISE = {"kind": "stepwise", "horizons": [6, 10, 16], "every": 10}


def experiment_with(curriculum: Curriculum, steps: int, **evaluation: Any) -> Experiment:
    algorithm = TEXTCRAFT.algorithm.model_copy(update={"steps": steps})
    measured = TEXTCRAFT.evaluation.model_copy(update=evaluation)
    return TEXTCRAFT.model_copy(
        update={"curriculum": curriculum, "algorithm": algorithm, "evaluation": measured}
    )


def horizons(curriculum: dict[str, Any], seed: int = 0, steps: int = 40) -> list[int]:
    experiment = load_recipe(
        "textcraft", {"curriculum": curriculum, "seeds.training": seed, "algorithm.steps": steps}
    )
    return [horizon_at(experiment, step, {}) for step in range(steps)]


def test_the_papers_textcraft_schedule_changes_exactly_at_steps_100_and_200() -> None:
    paper = experiment_with(StepwiseHorizon(horizons=[10, 20, 30], every=100), 300)
    assert [horizon_at(paper, step, {}) for step in (0, 99, 100, 199, 200, 299, 300, 1000)] == [
        10,
        10,
        20,
        20,
        30,
        30,
        30,
        30,
    ]


def test_a_linear_schedule_grows_by_delta_and_stops_at_its_maximum() -> None:
    schedule = experiment_with(LinearHorizon(start=2, delta=3, every=2, maximum=9), 9)
    assert [horizon_at(schedule, step, {}) for step in range(9)] == [2, 2, 5, 5, 8, 8, 9, 9, 9]


def test_phases_are_ranges_of_one_horizon() -> None:
    experiment = experiment_with(StepwiseHorizon(horizons=[4, 8, 16], every=14), 40)
    assert phases(experiment, {}) == [
        Phase(1, 4, 0, 14, 4),
        Phase(2, 8, 14, 28, 8),
        Phase(3, 16, 28, 40, 16),
    ]


def test_shorter_run_has_fewer_phases() -> None:
    assert phases(experiment_with(StepwiseHorizon(horizons=[4, 8], every=10), 7), {}) == [
        Phase(1, 4, 0, 7, 4)
    ]


def test_phases_also_end_at_evaluation_every() -> None:
    assert [
        p.end_step for p in phases(experiment_with(FixedHorizon(horizon=9), 20, every=8), {})
    ] == [
        8,
        16,
        20,
    ]
    assert [
        p.end_step
        for p in phases(
            experiment_with(StepwiseHorizon(horizons=[4, 8], every=10), 20, every=8), {}
        )
    ] == [8, 10, 16, 20]


@given(curricula, st.integers(1, 120), st.integers(1, 40) | st.none())
def test_phases_cover_every_step_once_with_the_schedules_horizon(
    curriculum: Curriculum, steps: int, every: int | None
) -> None:
    experiment = experiment_with(curriculum, steps, every=every)
    covered = [
        (step, phase.horizon)
        for phase in phases(experiment, {})
        for step in range(phase.first_step, phase.end_step)
    ]
    assert covered == [(step, horizon_at(experiment, step, {})) for step in range(steps)]


@given(curricula, st.integers(0, 200))
def test_horizon_never_decreases(curriculum: Curriculum, step: int) -> None:
    experiment = experiment_with(curriculum, 300)
    assert horizon_at(experiment, step, {}) <= horizon_at(experiment, step + 1, {})


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        horizon_at(experiment_with(FixedHorizon(horizon=3), 5), -1, {})


def test_reversed_schedule_has_the_opposite_order() -> None:
    assert (
        horizons({"kind": "reversed", "of": STEPWISE})
        == horizons(STEPWISE)[::-1]
        == [16] * 20 + [10] * 10 + [6] * 10
    )


def test_shuffled_schedule_permutes_the_horizons_by_seed() -> None:
    orders = [tuple(horizons({"kind": "shuffled", "of": STEPWISE}, seed)) for seed in range(5)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(horizons(STEPWISE)))}
    assert len(set(orders)) == 5
    assert orders[3] == tuple(horizons({"kind": "shuffled", "of": STEPWISE}, 3))


def test_random_schedule_has_the_same_horizon_frequencies() -> None:
    drawn = Counter(
        h for seed in range(50) for h in horizons({"kind": "random", "of": STEPWISE}, seed)
    )
    assert abs(drawn[6] / 2000 - 0.25) < 0.05
    assert abs(drawn[16] / 2000 - 0.5) < 0.05


@pytest.mark.parametrize("kind", ["shuffled", "random"])
def test_unordered_controls_are_evaluated_at_the_same_steps(kind: str) -> None:
    experiment = load_recipe("textcraft", {"curriculum": {"kind": kind, "of": STEPWISE}})
    assert [phase.end_step for phase in phases(experiment, {})] == [10, 20, 40]
    assert phases(experiment, {})[2].horizons == "horizons 6 to 16"


def test_schedule_that_uses_metrics_has_no_control() -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(
            "textcraft",
            {
                "curriculum": {
                    "kind": "shuffled",
                    "of": {"kind": "success-gated", "horizons": [4, 8]},
                }
            },
        )
    assert refused.value.codes == {"curriculum.of": "value_error"}
