"""Tests of the scripts and the notebook in examples/, with small settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd
import pytest

from flows.api import load_evaluation, load_run
from tests.support.small_gguf import write_small_gguf
from tests.support.small_runs import SMALL
from tests.support.tiny_policy import build_tiny_policy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FIELDS = SMALL | {
    "algorithm.steps": 2,
    "curriculum.horizons": [2, 3],
    "curriculum.every": 1,
    "evaluation.n_tasks": 2,
    "evaluation.samples": 1,
}
RL_ONLY = ("algorithm.entropy_coefficient",)

NOTEBOOK = """
import asyncio, json, sys
import matplotlib; matplotlib.use("Agg")
cells = [each["source"] for each in json.load(open(sys.argv[1]))["cells"] if each["cell_type"] == "code"]
async def kernel():  # a notebook's kernel runs an event loop in the main thread
    names = {}
    for cell in cells:
        exec("".join(cell), names)
    print(len(names["baseline"].success()), "cell")
asyncio.run(kernel())
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: dict[str, str]) -> Iterator[Path]:
    runs = tmp_path_factory.mktemp("examples") / "runs"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (prefect_api | {"AGENTGYM_TRAINER_PROCESSES": "1"}).items():
            environment.setenv(name, value)
        yield runs


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_tiny_policy(tmp_path_factory.mktemp("policy"))


def words(policy: str, without: Collection[str] = ()) -> list[str]:
    """Return the fields of a small run as command-line words."""
    fields = {name: value for name, value in FIELDS.items() if name not in without}
    return [
        word
        for name, value in {**fields, "policy.model": policy}.items()
        for word in (f"--{name}", str(value))
    ]


def python(runs: Path, *words: str | Path, **variables: str) -> str:
    """Run Python in the repository root and return its output."""
    environment = {**os.environ, "AGENTGYM_RUNS": str(runs), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(runs: Path, policy: str) -> Path:
    python(runs, "examples/train.py", "textcraft", *words(policy))
    (folder,) = runs.glob("small-*")
    return folder


@pytest.fixture(scope="module")
def cloned(runs: Path, trained: Path, policy: str) -> Path:
    python(
        runs, "examples/learn_from_demonstrations.py", policy, *words(policy, RL_ONLY), N_TASKS="6"
    )
    (folder,) = set(runs.glob("small-*")) - {trained}
    return folder


def test_the_training_example_trains_with_changed_fields(trained: Path) -> None:
    run = load_run(trained)
    assert (run.status, list(run.evaluations), list(run.metrics().index)) == (
        "finished",
        ["start", "phase-1", "phase-2"],
        [1, 2],
    )
    assert run.checkpoint == run.checkpoints[2]


def test_the_baseline_example_compares_a_checkpoint_with_the_random_policy(
    runs: Path, trained: Path
) -> None:
    python(runs, "examples/compare_with_baseline.py", trained)
    kinds = {load_evaluation(folder).grid.source.kind for folder in (runs / "evaluated").iterdir()}
    assert kinds == {"model", "random"}


def test_the_demonstration_example_clones_the_experts_episodes(cloned: Path) -> None:
    run = load_run(cloned)
    assert (run.status, run.recipe.algorithm.name) == ("finished", "sft")


def test_the_language_model_example_clones_the_expert_and_then_trains_by_rl(
    runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "small.gguf"
    write_small_gguf(file)
    without = {*RL_ONLY, "policy.dtype", "rollout.trajectory_tokens"}
    fields = [
        *words(str(file), without),
        "--policy.dtype",
        "bfloat16",
        "--rollout.trajectory_tokens",
        "4000",
        "--name",
        "language-model",
    ]
    python(runs, "examples/train_language_model.py", "textcraft", *fields, N_TASKS="4")
    (started,) = map(load_run, runs.glob("language-model-start-*"))
    (trained,) = map(load_run, set(runs.glob("language-model-*")) - {started.folder})
    assert (started.status, started.recipe.algorithm.name) == ("finished", "sft")
    assert (trained.status, trained.recipe.algorithm.name) == ("finished", "grpo")
    assert trained.recipe.policy.model == str(started.checkpoint)


def test_the_comparison_example_writes_the_curves_of_both_runs(
    runs: Path, trained: Path, cloned: Path, tmp_path: Path
) -> None:
    python(runs, "examples/compare_runs.py", trained, cloned, tmp_path / "curves.csv")
    assert set(pd.read_csv(tmp_path / "curves.csv")["run"]) == {trained.name, cloned.name}


def test_the_world_example_is_solved_by_its_expert(runs: Path) -> None:
    python(runs, "examples/own_world.py", "4")
    (folder,) = (
        each
        for each in (runs / "evaluated").iterdir()
        if load_evaluation(each).grid.environment.name == "own_world:Guessing"
    )
    assert load_evaluation(folder).success()["success"].tolist()[-1] == 1.0


def test_the_notebook_runs_in_a_process_with_an_event_loop(runs: Path, trained: Path) -> None:
    assert python(
        runs, "-c", NOTEBOOK, "examples/run.ipynb", RUN_FOLDER=str(trained), N_TASKS="2"
    ).endswith("1 cell\n")
