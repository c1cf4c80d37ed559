"""Tests of the guide's example schedule: a recipe selects the class, which sets the horizon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from configs.curriculum import Training
from configs.experiment import Experiment
from configs.recipe import RecipeError, load_recipe
from tasks.curriculum.horizon import phases
from tasks.training.messages import TrainerJob
from tasks.training.rollout_batches import RolloutBatches
from tests.support.playing import ROOT
from tests.support.processes import assert_passes_linter

GUIDE = (ROOT / "configs" / "ADDING_A_SCHEDULE.md").read_text(encoding="utf-8")
CYCLIC = {
    "kind": "outside_schedules.cyclic_horizon:CyclicHorizon",
    "horizons": [6, 10, 16],
    "every": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [code] = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    root = tmp_path_factory.mktemp("outside")
    (root / "outside_schedules").mkdir()
    (root / "outside_schedules" / "__init__.py").touch()
    (root / "outside_schedules" / "cyclic_horizon.py").write_text(code, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))


def recipe(**fields: Any) -> Experiment:
    return load_recipe("textcraft", {"curriculum": {**CYCLIC, **fields}, "algorithm.steps": 12})


def test_each_cycle_has_one_phase_per_horizon() -> None:
    horizons = [recipe().curriculum.horizon_at(step, Training(12)) for step in range(12)]
    assert horizons == [6, 6, 10, 10, 16, 16] * 2
    assert [
        p.horizon for p in phases(recipe(), {}) for _ in range(p.first_step, p.end_step)
    ] == horizons
    assert len(phases(recipe(), {})) == 6


def test_schedule_survives_serialisation_and_sets_the_horizon_in_the_trainer() -> None:
    experiment = Experiment.model_validate_json(recipe().model_dump_json())
    assert experiment == recipe()
    job = TrainerJob.model_construct(experiment=experiment, train_tasks=[1, 2, 3])

    class Alone:
        class processes:
            num_processes, process_index = 1, 0

    source = RolloutBatches(job, Alone(), None)  # type: ignore[arg-type]
    for step in range(12):
        plan = source.plan(step, {})
        assert (
            plan.horizon
            == plan.batches[0].settings.horizon
            == experiment.curriculum.horizon_at(step, Training(12))
        )


def test_invalid_and_unknown_fields_are_refused() -> None:
    for field, value, code in (("every", 0, "greater_than"), ("maximum", 3, "field_of_another")):
        with pytest.raises(RecipeError) as refused:
            recipe(**{field: value})
        assert refused.value.codes == {f"curriculum.{field}": code}


def test_example_passes_the_linter(folder: Path) -> None:
    assert_passes_linter(folder / "outside_schedules")
