"""Tests of evaluations from the command line: expert, random policy and repeated commands."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from flows.results import read_results
from tests.drills.test_flow_commands import command

pytestmark = pytest.mark.slow

WORDS = ["flows.evaluate", "textcraft", "--tasks", "wood-test", "--n-tasks", "6", "--samples", "2"]


def test_an_evaluation_gets_more_horizons_and_is_compared_with_another_policy(
    tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    runs, expert, chance = tmp_path / "runs", tmp_path / "expert", tmp_path / "random"
    words = [*WORDS, "--out", str(expert)]
    first = command(runs, *words, "--oracle", "--horizon", "1")
    assert first.returncode == 0, first.stderr
    [short] = read_results(expert).values()
    assert short.success.value < 1.0
    assert short.truncated > 0
    assert (expert / "wood-test-horizon-1-temperature-1").is_dir()

    more = command(runs, *words, "--oracle", "--horizon", "12", **prefect_api)
    assert more.returncode == 0, more.stderr
    again, long = (
        read_results(expert)[f"wood-test, horizon {horizon}, temperature 1"] for horizon in (1, 12)
    )
    assert again == short
    assert long.success.value == 1.0
    assert long.pass_all[2].value == 1.0
    assert (expert / "evaluation.png").read_bytes()[:4] == b"\x89PNG"

    both = command(runs, *words, "--oracle", "--horizon", "1", "12", **prefect_api)
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("all 12 episodes") == 2  # nothing is played again

    before = {path for path in expert.rglob("*") if path.suffix != ".lock"}
    mixed = command(runs, *words, "--random", "--horizon", "3", **prefect_api)
    assert mixed.returncode == 1
    assert "DifferentCollectionError" in mixed.stderr
    assert "source" in mixed.stderr
    assert {path for path in expert.rglob("*") if path.suffix != ".lock"} == before

    against = ["--horizon", "12", "--out", str(chance), "--against", str(expert)]
    other = command(runs, *WORDS, "--random", *against, **prefect_api)
    assert other.returncode == 0, other.stderr
    cell = read_results(chance)["wood-test, horizon 12, temperature 1"]
    assert cell.success.value < 1.0
    assert cell.malformed == 0.0  # every action was valid
    assert f"{100 * (cell.success.value - 1):+.1f} [" in (chance / "evaluation.md").read_text()
    assert (
        json.loads((chance / "evaluation.json").read_text())["grid"]["source"]["kind"] == "random"
    )

    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "evaluations")
    shown = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(shown) == {"oracle in textcraft", "random in textcraft"}
    history = client.get_metric_history(
        shown["oracle in textcraft"].info.run_id, "wood-test at temperature 1/success"
    )
    assert [(point.step, point.value) for point in sorted(history, key=lambda p: p.step)] == [
        (1, short.success.value),
        (12, 1.0),
    ]
