"""Names of a study's arms in the viewer, and which runs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from configs.recipe import load_recipe
from dashboards.arms import arms_of, arms_of_studies, comparable_runs
from dashboards.run_folders import RunFolder, run_folders
from tasks.tracking.run_folder import COLLAPSED, FINISHED
from tasks.tracking.run_folder import RunFolder as StoredRun


def run_of(runs: Path, **overrides: Any) -> RunFolder:
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    recipe = load_recipe("textcraft", given).model_dump(mode="json")
    return RunFolder(runs / str(len(overrides)), str(given), recipe)


def test_arms_have_the_names_of_their_study(tmp_path: Path) -> None:
    ahead = [
        {"rollout__max_off_policy_steps": steps, "seeds__training": seed}
        for steps in (0, 1)
        for seed in (0, 1)
    ]
    runs = [run_of(tmp_path, **fields) for fields in ahead]
    recipes = tmp_path / "studies" / "quickstart-1a2b3c4d" / "recipes"
    recipes.mkdir(parents=True)
    for name, run in zip(
        ("synchronous-0", "synchronous-1", "one-ahead-0", "one-ahead-1"), runs, strict=True
    ):
        (recipes / f"{name}.yaml").write_text(yaml.safe_dump(run.recipe))
    (recipes / "half-written-0.yaml").write_text("name: [")
    (recipes / "damaged-0.yaml").write_bytes(b"name: \xff")
    assert {
        arm.name: len(arm.runs) for arm in arms_of(runs, arms_of_studies(tmp_path, "quickstart"))
    } == {"one-ahead": 2, "synchronous": 2}


def test_arms_without_a_study_are_named_by_the_fields_in_which_they_differ(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, rollout__max_off_policy_steps=steps) for steps in (0, 1)]
    assert [arm.name for arm in arms_of(runs, {})] == [
        "max_off_policy_steps 0",
        "max_off_policy_steps 1",
    ]
    methods = [run_of(tmp_path, algorithm__name=name) for name in ("grpo", "rloo")]
    assert [arm.name for arm in arms_of(methods, {})] == ["grpo", "rloo"]


def test_arms_with_equal_names_in_two_studies_are_distinguished_by_their_fields(
    tmp_path: Path,
) -> None:
    runs = [run_of(tmp_path, evaluation__samples=samples) for samples in (4, 8)]
    for number, run in enumerate(runs):
        recipes = tmp_path / "studies" / f"quickstart-{number}" / "recipes"
        recipes.mkdir(parents=True)
        (recipes / "stepwise-0.yaml").write_text(yaml.safe_dump(run.recipe))
    assert [arm.name for arm in arms_of(runs, arms_of_studies(tmp_path, "quickstart"))] == [
        "stepwise (evaluation.samples 4)",
        "stepwise (evaluation.samples 8)",
    ]


def test_an_arm_is_named_by_every_field_in_which_it_differs(tmp_path: Path) -> None:
    fields = [
        {"environment__name": name, "rollout__group_size": size}
        for name, size in (("textcraft", 4), ("textcraft", 8))
    ]
    runs = [run_of(tmp_path, **each) for each in fields] + [
        run_of(tmp_path, algorithm__name="rloo", rollout__group_size=4)
    ]
    assert [arm.name for arm in arms_of(runs, {})] == [
        "grpo, group_size 4",
        "grpo, group_size 8",
        "rloo, group_size 4",
    ]


def test_a_study_compares_finished_runs_with_the_same_evaluation(tmp_path: Path) -> None:
    def run(name: str, finished: bool = True, **overrides: Any) -> RunFolder:
        made = run_of(tmp_path, **overrides)
        folder = RunFolder(tmp_path / name, name, made.recipe)
        (folder.path / "done").mkdir(parents=True)
        if finished:
            (folder.path / "done" / FINISHED).touch()
        return folder

    alike = [run(f"alike-{seed}", seeds__training=seed) for seed in (0, 1)]
    other_list = run("other-list", evaluation__tasks="one-command-test")
    stopped = run("stopped", finished=False, seeds__training=2)
    taken, left_out = comparable_runs([*alike, other_list, stopped])
    assert taken == alike
    assert set(left_out) == {"other-list", "stopped"}
    assert "one-command-test" in left_out["other-list"]


def test_a_run_has_its_recorded_title_status_and_duration(tmp_path: Path) -> None:
    written = StoredRun(tmp_path, load_recipe("textcraft"))
    with written.claimed():
        written.note_title("grpo, stepwise, textcraft, seed 0")
        written.note_title("grpo, stepwise, textcraft, seed 0, again")
    [run] = run_folders(tmp_path)
    assert run.title == "grpo, stepwise, textcraft, seed 0, again"
    assert run.began is not None
    assert run.duration is not None
    assert run.status(run.changed) == "running"
    assert run.status(run.changed + 3600) == "stopped"
    written.mark_done(FINISHED)
    assert run.status(run.changed) == "finished"
    written.mark_done(COLLAPSED)
    assert run.status(run.changed) == "collapsed"
