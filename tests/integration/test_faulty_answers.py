"""Spoilt answers move no figure; `tests/soaks/faulty_answers.py` has the command for every mode and more episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soaks.faulty_answers import drills


@pytest.mark.slow
def test_an_evaluation_behind_late_answers_is_incomplete_with_true_bounds_and_the_same_command_completes_it(tmp_path: Path) -> None:
    truth, [late] = drills(tmp_path, 16, ["late"], 0.1)
    assert 0 < late.disturbed.result.failed < 16
    assert late.disturbed.status != 0
    assert "INCOMPLETE" in late.disturbed.first
    low, high = late.disturbed.result.bounds
    assert low.value <= truth.success.value <= high.value
    assert (late.repeated.status, late.repeated.result.tallies) == (0, truth.tallies)
    assert late.wrong(truth) == ""
