"""Tests of the guides' examples as installed packages: entry points, checks and training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.algorithm import ALGORITHMS
from configs.curriculum import SCHEDULES
from configs.infrastructure import InfraSettings
from configs.plugins import ENGINES, UPDATE_METRICS, plugin_target
from configs.recipe import RecipeError, load_recipe
from tasks.training.check_extensions import check_algorithm, check_schedule
from tasks.training.messages import StepDone
from tasks.training.trainer_client import TrainerProcess
from tests.support.playing import ROOT, starting
from tests.support.small_training import small_job

GUIDES = {
    "tasks/training/ADDING_AN_ALGORITHM.md": "best_of_group",
    "configs/ADDING_A_SCHEDULE.md": "cyclic_horizon",
    "docs/adding-an-engine.md": "plain_engine",
    "docs/adding-an-update-metric.md": "surprisal",
}
"""Path of each guide -> module of its example."""
RECIPE = {
    "algorithm.name": "best-of-group",
    "algorithm.margin": 0.5,
    "algorithm.update_metrics": ["surprisal"],
    "algorithm.entropy_coefficient": 0.01,  # so that episodes with advantage 0 stay in the update
    "algorithm.mini_batches": 1,
    "curriculum": {"kind": "cyclic", "horizons": [2, 3], "every": 1},
    "rollout.engine": "plain",
    "rollout.tasks_per_step": 2,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages with pip and return their folder."""
    root = tmp_path_factory.mktemp("packages")
    for guide, module in GUIDES.items():
        text = (ROOT / guide).read_text(encoding="utf-8")
        folder = root / module
        folder.mkdir()
        for language, file in (("python", f"{module}.py"), ("toml", "pyproject.toml")):
            [block] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
            (folder / file).write_text(block, encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run(
        [*pip, "--target", str(root / "site"), *(str(root / module) for module in GUIDES.values())],
        check=True,
    )
    return root / "site"


@pytest.fixture(autouse=True)
def importable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", str(installed))


def test_each_package_is_found_by_its_entry_point() -> None:
    assert "best-of-group" in ALGORITHMS.names()
    assert "cyclic" in SCHEDULES.names()
    assert plugin_target(ENGINES, "plain") == "plain_engine:PlainEngine"
    assert plugin_target(UPDATE_METRICS, "surprisal") == "surprisal:surprisal"


def test_a_name_that_two_packages_register_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[agentgym.schedules]\ncyclic = other:Cyclic\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {"curriculum": RECIPE["curriculum"]})
    assert refused.value.codes == {"curriculum.kind": "unknown_name"}
    assert "cyclic_horizon:CyclicHorizon, other:Cyclic" in str(refused.value)


@pytest.mark.slow
def test_the_algorithm_and_the_schedule_pass_the_conformance_checks() -> None:
    schedule = check_schedule(dict(RECIPE["curriculum"]))  # type: ignore[call-overload]
    findings = [*check_algorithm({"name": "best-of-group", "margin": 0.5}), *schedule]
    assert {finding.name: finding.problem for finding in findings if finding.problem} == {}
    assert len(findings) == 11


@pytest.mark.slow
def test_one_training_run_uses_all_four_packages(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    with starting("textcraft", state_dir) as start:
        job = small_job(policy, tmp_path, start().url, RECIPE)
        with TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None) as trainer:
            trainer.ready()
            phases = [list(trainer.train(2)) for _ in range(2)]  # each horizon is a phase
            trainer.close()
    done = [event for events in phases for event in events if isinstance(event, StepDone)]
    assert [event.metrics["rollout/horizon"] for event in done] == [2.0, 3.0]
    for event in done:
        assert event.metrics["update/surprisal"] == pytest.approx(
            event.metrics["rollout/entropy"], rel=1e-4
        )
        assert event.metrics["update/gradient_norm"] > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rollout.engine", "plane"),
        ("algorithm.update_metrics", ["surprise"]),
        ("algorithm.name", "best-of-groups"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_installed_one(
    field: str, value: object
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {field: value})
    assert list(refused.value.codes) == [field]
    closest = {
        "rollout.engine": "plain",
        "algorithm.update_metrics": "surprisal",
        "algorithm.name": "best-of-group",
    }[field]
    assert repr(closest) in str(refused.value)
