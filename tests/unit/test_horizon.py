"""The horizon schedules against the paper's wording and hand-worked cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.curriculum import Curriculum, FixedHorizon, LinearHorizon, StepwiseHorizon
from tasks.curriculum.horizon import Phase, horizon_at, phases

curricula: st.SearchStrategy[Curriculum] = st.one_of(
    st.builds(FixedHorizon, horizon=st.integers(1, 50)),
    st.builds(
        StepwiseHorizon, horizons=st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted), every=st.integers(1, 20)
    ),
    st.builds(
        lambda start, delta, every, more: LinearHorizon(start=start, delta=delta, every=every, maximum=start + more),
        st.integers(1, 10),
        st.integers(1, 5),
        st.integers(1, 9),
        st.integers(0, 30),
    ),
)


def test_the_papers_textcraft_schedule_changes_exactly_at_steps_100_and_200() -> None:
    paper = StepwiseHorizon(horizons=[10, 20, 30], every=100)
    assert [horizon_at(paper, step) for step in (0, 99, 100, 199, 200, 299, 300, 1000)] == [10, 10, 20, 20, 30, 30, 30, 30]


def test_a_linear_schedule_grows_by_delta_and_stops_at_its_maximum() -> None:
    schedule = LinearHorizon(start=2, delta=3, every=2, maximum=9)
    assert [horizon_at(schedule, step) for step in range(9)] == [2, 2, 5, 5, 8, 8, 9, 9, 9]


def test_phases_are_the_stretches_of_one_horizon() -> None:
    assert phases(StepwiseHorizon(horizons=[4, 8, 16], every=14), 40) == [Phase(1, 4, 0, 14), Phase(2, 8, 14, 28), Phase(3, 16, 28, 40)]


def test_a_run_that_ends_early_has_fewer_phases() -> None:
    assert phases(StepwiseHorizon(horizons=[4, 8], every=10), 7) == [Phase(1, 4, 0, 7)]


@given(curricula, st.integers(1, 120))
def test_phases_cover_every_step_once_with_the_schedules_horizon(curriculum: Curriculum, steps: int) -> None:
    covered = [(step, phase.horizon) for phase in phases(curriculum, steps) for step in range(phase.first_step, phase.end_step)]
    assert covered == [(step, horizon_at(curriculum, step)) for step in range(steps)]


@given(curricula, st.integers(0, 200))
def test_the_horizon_never_shrinks(curriculum: Curriculum, step: int) -> None:
    assert horizon_at(curriculum, step) <= horizon_at(curriculum, step + 1)


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        horizon_at(FixedHorizon(horizon=3), -1)
