"""Tests of the published runs: their predicted times, and their recipes and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.experiment import Experiment
from configs.policy_gradient import PolicyGradient
from configs.study import load_study
from tasks.curriculum.horizon import phases
from tasks.evaluation.study_report import budget_section, threshold_section
from tasks.evaluation.study_runs_file import read_runs
from tasks.training.step_time import measured_speed

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def test_first_steps_predict_the_time_of_published_runs_within_a_factor_of_two() -> None:
    shares = {1: 0.85, 5: 1.0}  # measured steps -> minimum share of the runs that they predict
    ratios: dict[int, list[float]] = {measured: [] for measured in shares}
    for file in EVIDENCE.glob("*/runs.jsonl.gz"):
        for key, run in read_runs(file).items():
            recipe = Experiment.model_validate(json.loads(key)["recipe"])
            if not isinstance(recipe.algorithm, PolicyGradient) or recipe.curriculum.looks_back:
                continue
            if run.collapsed:
                continue  # its episodes become longer than those of its first steps
            horizons = {
                number: phase.horizon
                for phase in phases(recipe, {})
                for number in range(phase.first_step + 1, phase.end_step + 1)
            }
            steps = {
                number: {**step, "rollout/horizon": horizons[number]}
                for number, step in run.steps.items()
            }
            actual = sum(s["rollout/seconds"] + s["update/seconds"] for s in steps.values())
            for measured, found in ratios.items():
                speed = measured_speed({n: steps[n] for n in sorted(steps)[:measured]})
                found.append(
                    sum(
                        sum(speed.seconds(s["rollout/episodes"], s["rollout/horizon"]))
                        for s in steps.values()
                    )
                    / actual
                )
    for measured, least in shares.items():
        found = ratios[measured]
        assert len(found) > 80
        assert sum(0.5 <= ratio <= 2 for ratio in found) >= least * len(found)


@pytest.mark.parametrize("name", ["horizons-deep", "horizons-doors", "horizons-gated"])
def test_the_stored_horizon_studies_have_no_threshold_times_and_no_difference_at_equal_time(
    name: str,
) -> None:
    spec = load_study(name)
    kept = read_runs(EVIDENCE / name / "runs.jsonl.gz")
    runs = {arm: [run for run in kept.values() if run.arm == arm] for arm in spec.arms}
    arms_with_runs = {arm: of_arm for arm, of_arm in runs.items() if of_arm}
    for axis in ("turns", "seconds"):
        assert not any(
            section.rows
            for section in (
                *threshold_section(spec, arms_with_runs, axis),
                *budget_section(spec, arms_with_runs, axis),
            )
        )
    recipes = [Experiment.model_validate(json.loads(key)["recipe"]) for key in kept]
    assert all(
        recipe == spec.experiment(run.arm, run.seed)
        for recipe, run in zip(recipes, kept.values(), strict=True)
    )
