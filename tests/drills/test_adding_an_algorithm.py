"""Tests of the example algorithm in ADDING_AN_ALGORITHM.md: its recipe checks and training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from configs.recipe import RecipeError, load_recipe
from tests.support.playing import ROOT
from tests.support.processes import assert_passes_linter, run_python
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)
from tests.support.tiny_policy import build_tiny_policy

GUIDE = (ROOT / "tasks" / "training" / "ADDING_AN_ALGORITHM.md").read_text(encoding="utf-8")
NAME = "outside_of_the_project.best_of_group:BestOfGroup"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the guide's example to a package outside the project, and return its parent."""
    [code] = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    root = tmp_path_factory.mktemp("outside")
    package = root / "outside_of_the_project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "best_of_group.py").write_text(code, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))


def test_recipe_accepts_only_the_fields_of_the_algorithm() -> None:
    assert (
        load_recipe(
            "textcraft", {"algorithm.name": NAME, "algorithm.margin": 0.5}
        ).algorithm.model_dump()["margin"]
        == 0.5
    )
    for field, value, code in (
        ("gae_lambda", 0.5, "field_of_another"),
        ("margin", 0, "greater_than"),
    ):
        with pytest.raises(RecipeError) as refused:
            load_recipe("textcraft", {"algorithm.name": NAME, f"algorithm.{field}": value})
        assert refused.value.codes == {f"algorithm.{field}": code}


def test_recipe_with_the_algorithm_is_checked_without_torch(folder: Path) -> None:
    load = f"from configs.recipe import load_recipe; load_recipe('textcraft', {{'algorithm.name': {NAME!r}}})"
    code = f"{load}; import sys; print('torch' in sys.modules)"
    assert run_python(code, PYTHONPATH=f"{ROOT}:{folder}") == "False"


@pytest.mark.slow
def test_training_favours_the_best_trajectory_of_each_group(tmp_path: Path) -> None:
    policy = build_tiny_policy(tmp_path / "policy")
    experiment = small_experiment(name=NAME, steps=8, margin=0.5, learning_rate=3e-3)
    trainer = trainer_of(experiment, policy, tmp_path / "run")
    batch = recorded_trajectories(policy, 0, noise=0.0)
    [[first, *_]] = [trainer.samples_of(batch, 0)]
    assert {float(a) for a in first.advantages.unique()} <= {-0.5, 0.0, 0.5}

    def likelihoods() -> dict[bool, float]:
        best = {g: max(t.reward for t in batch if t.group == g) for g in range(4)}
        scores = trainer.scores_of(lambda tensors: trainer.score(trainer.model, tensors), batch)
        sums: dict[bool, float] = {True: 0.0, False: 0.0}
        for t, row in zip(batch, scores, strict=True):
            sums[t.reward == best[t.group]] += float((row * torch.tensor(t.policy_mask)).sum())
        return sums

    before = likelihoods()
    metrics = train(trainer, RecordedBatches(policy, batch=batch), 8)
    after = likelihoods()
    assert metrics[0]["update/gradient_norm"] > 0
    assert after[True] - before[True] > after[False] - before[False]


def test_example_passes_the_linter(folder: Path) -> None:
    assert_passes_linter(folder / "outside_of_the_project")
