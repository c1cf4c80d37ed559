"""Tests of the viewer's figures of evaluations and step times."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.recipe import load_recipe
from dashboards.figures import figure, line, time_per_step, with_interval
from dashboards.run_folders import RunFolder, run_folders
from tasks.evaluation.benchmark import evaluate, write_evaluation
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.tracking.run_folder import RunFolder as StoredRun


def run_of(folder: Path, seed: int, steps: list[int]) -> RunFolder:
    """Create a run that is evaluated after each of these training steps."""
    for step in steps:
        outcomes = [
            Outcome.SUCCESS if task % 3 > seed % 2 else Outcome.TRUNCATED for task in range(6)
        ]
        played = [
            Trajectory("textcraft", task, 0, 0, 0, 4, step, "vllm", outcome=outcome)
            for task, outcome in enumerate(outcomes)
        ]
        name = "start" if step == 0 else f"phase-{step}"
        write_evaluation(
            folder / "evaluations" / f"{name}.json",
            evaluate(played, label=name, step=step, horizon=4),
        )
    return RunFolder(folder, folder.name, {"name": "x", "seeds": {"training": seed}})


@pytest.mark.parametrize(("steps", "mode"), [([0, 9], "markers"), ([0, 3, 9], "lines+markers")])
def test_three_or_more_measurements_are_joined_by_a_line(
    tmp_path: Path, steps: list[int], mode: str
) -> None:
    one = with_interval(run_of(tmp_path, 0, steps).evaluations(), "red")
    assert (one["x"], one["mode"]) == (steps, mode)
    assert all(one["error_y"]["array"])


def test_legend_is_below_the_axes() -> None:
    few, many = (
        figure(
            [line([0], [0], f"arm {n} of a study", "red") for n in range(count)], {"height": 460}
        )
        for count in (2, 12)
    )
    for each in (few, many):
        assert each["layout"]["legend"]["yanchor"] == "top"
    drawn = [
        each["layout"]["height"] - each["layout"]["margin"]["t"] - each["layout"]["margin"]["b"]
        for each in (few, many)
    ]
    assert drawn[0] == drawn[1]
    assert many["layout"]["margin"]["b"] > few["layout"]["margin"]["b"]


def run_with_metrics(folder: Path, *steps: dict[str, float]) -> RunFolder:
    """Create a run with these metrics of its training steps."""
    written = StoredRun(folder, load_recipe("textcraft"))
    with written.claimed():
        written.begin("figures")
        for step, metrics in enumerate(steps, 1):
            written.add_metrics(step, metrics)
    [run] = run_folders(folder)
    return run


def test_the_time_per_step_shows_the_age_of_weights_in_training_steps(tmp_path: Path) -> None:
    current = {"update/seconds": 3.0, "update/staleness_largest": 7, "rollout/staleness_largest": 0}
    on_policy = time_per_step(run_with_metrics(tmp_path / "on", current, current))
    assert not [trace for trace in on_policy["data"] if trace["type"] == "scatter"]
    stale = time_per_step(
        run_with_metrics(tmp_path / "off", current, current | {"rollout/staleness_largest": 2})
    )
    [ages] = [trace for trace in stale["data"] if trace["type"] == "scatter"]
    assert ages["y"] == [0, 2]
    assert stale["layout"]["yaxis2"]["dtick"] == 1


def test_time_figure_of_a_run_without_steps_is_empty(tmp_path: Path) -> None:
    assert time_per_step(run_with_metrics(tmp_path))["data"] == []
