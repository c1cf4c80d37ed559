"""Tests of the registry of studies: frozen fields, looks at held-out tasks, published studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError
from configs.study import Study
from configs.task_selection import selection_name
from environments.registry import load_world
from flows.study import registries
from flows.study_page import write_page
from tasks.evaluation.study_registry import (
    FROZEN,
    Registration,
    StudyChangedError,
    TasksLookedAtError,
    changes,
    publish,
    read_registry,
    register,
    registered,
    registration_of,
)
from tasks.evaluation.study_runs_file import read_runs

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
TREE: dict[str, Any] = {
    "name": "first",
    "question": "Does it?",
    "recipe": "textcraft",
    "arms": {"long": {"algorithm.steps": 21}, "short": {"algorithm.steps": 7}},
    "seeds": 3,
    "overrides": {"evaluation.tasks": "one-command-test"},
    "comparisons": [["long", "short"]],
}


def study(**fields: Any) -> Study:
    return Study.model_validate(TREE | fields)


def entered(
    tmp_path: Path, reason: str | None = None, *, begun: bool = False, **fields: Any
) -> Registration:
    files = tmp_path / "studies" / "registry.jsonl", tmp_path / "published.jsonl"
    made = study(**fields)
    return register(made, tmp_path / "studies" / made.name, files, reason, begun)


def test_a_registration_after_the_first_run_has_no_time(tmp_path: Path) -> None:
    assert entered(tmp_path, begun=True).registered is None
    assert entered(tmp_path).registered is None  # the entry is not replaced


def test_a_study_is_registered_once_with_its_lists_seeds_and_endpoint(tmp_path: Path) -> None:
    first = entered(tmp_path, smallest_effect=0.02, tuning_seeds=[7])
    assert entered(tmp_path, smallest_effect=0.02, tuning_seeds=[7]) == first
    [stored] = read_registry(tmp_path / "studies" / "registry.jsonl")
    frozen = (tmp_path / "studies" / "first" / FROZEN).read_text()
    assert stored == first == Registration.model_validate_json(frozen)
    assert (stored.study.seeds, stored.study.tuning_seeds) == ((0, 1, 2), (7,))
    assert stored.study.smallest_effect == 0.02
    assert stored.recipes["short"]["algorithm"]["steps"] == 7
    tested, trained = stored.lists
    assert (tested.name, tested.use) == ("one-command-test", "evaluation")
    assert list(tested.held_out) == sorted(load_world("textcraft").tasks("one-command-test"))
    assert (trained.use, trained.held_out) == ("training", ())
    assert stored.registered is not None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"seeds": 2}, "seeds"),
        ({"arms": TREE["arms"] | {"short": {"algorithm.steps": 8}}}, "arm short, algorithm.steps"),
        ({"overrides": {"evaluation.tasks": "one-command-validation"}}, "list one-command-test"),
        ({"endpoint": {"at": "turns"}}, "endpoint.at"),
        ({"comparisons": []}, "comparisons"),
        ({"smallest_effect": 0.1}, "smallest_effect"),
    ],
)
def test_a_registered_study_with_a_changed_field_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    entered(tmp_path)
    before = (tmp_path / "studies" / "registry.jsonl").read_bytes()
    with pytest.raises(StudyChangedError) as refused:
        entered(tmp_path, **fields)
    assert any(field in each for each in refused.value.changes)
    assert (tmp_path / "studies" / "registry.jsonl").read_bytes() == before
    entered(tmp_path, "another question", **fields | {"name": "second"})


def test_held_out_tasks_of_another_study_require_a_reason_which_the_page_prints(
    tmp_path: Path,
) -> None:
    entered(tmp_path)
    with pytest.raises(TasksLookedAtError) as refused:
        entered(tmp_path, name="second")
    [look] = refused.value.looks
    assert (look.list_name, look.study, look.n_tasks) == ("one-command-test", "first", 120)
    assert not (tmp_path / "studies" / "second").exists()
    again = entered(tmp_path, "The reviewers ask for it.", name="second")
    assert again.looks == (look,)
    assert entered(tmp_path, name="second") == again  # the reason is kept
    page = write_page(study(name="second"), {}, tmp_path / "page", {}, again)
    assert "The reviewers ask for it." in page.markdown
    assert all(each.digest in page.markdown for each in again.lists)
    stored = json.loads((tmp_path / "page" / "report.json").read_text())["registration"]
    assert stored["look_again"] == "The reviewers ask for it."


def test_validation_lists_and_other_test_lists_require_no_reason(tmp_path: Path) -> None:
    entered(tmp_path)
    for number, tasks in enumerate(
        ("one-command-validation", "one-command-validation", "one-command-fresh-test")
    ):
        free = entered(tmp_path, name=f"next-{number}", overrides={"evaluation.tasks": tasks})
        assert free.looks == ()


@pytest.mark.parametrize("selection", ["indices", "further evaluation", "mixture"])
def test_looks_are_found_by_their_tasks_under_any_selection(tmp_path: Path, selection: str) -> None:
    entered(tmp_path)
    some = list(load_world("textcraft").tasks("one-command-test"))[:5]
    fields: dict[str, Any] = {
        "indices": {"overrides": {"evaluation.tasks": some}},
        "further evaluation": {"overrides": {}, "beyond": {"tasks": ["one-command-test"]}},
        "mixture": {
            "recipe": "mixed",
            "overrides": {"evaluation.tasks": "one-command-test+islands-validation"},
        },
    }[selection]
    with pytest.raises(TasksLookedAtError) as refused:
        entered(tmp_path, name="second", **fields)
    assert [look.study for look in refused.value.looks] == ["first"]


def test_looks_under_other_rules_are_reported_and_not_refused(tmp_path: Path) -> None:
    first = entered(tmp_path)
    rules = {"environment.rules": "agentgym", "policy.action_format": "bare"}
    again = entered(
        tmp_path, name="second", overrides={"evaluation.tasks": "one-command-test"} | rules
    )
    [look] = again.looks
    assert (look.study, look.n_tasks, look.version) == ("first", 120, first.lists[0].version)
    assert look.version != again.lists[0].version
    assert (
        look.version in write_page(study(name="second"), {}, tmp_path / "page", {}, again).markdown
    )


def test_looks_of_published_studies_count(tmp_path: Path) -> None:
    made = entered(tmp_path / "elsewhere")
    publish(made, tmp_path / "published.jsonl")
    publish(made, tmp_path / "published.jsonl")
    assert read_registry(tmp_path / "published.jsonl") == [made]
    assert registered(study(), [tmp_path / "published.jsonl"]) == made
    assert registered(study(seeds=2), [tmp_path / "published.jsonl"]) is None
    assert entered(tmp_path) == made
    with pytest.raises(TasksLookedAtError):
        entered(tmp_path, name="second")


def test_published_looks_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, published = registries(InfraSettings(runs=tmp_path))
    assert "horizons-deep" in {each.study.name for each in read_registry(published)}


def test_a_study_that_another_machine_published_with_other_fields_is_refused(
    tmp_path: Path,
) -> None:
    own, files = study(smallest_effect=0.1), [tmp_path / "studies" / "registry.jsonl"]
    made = entered(tmp_path, smallest_effect=0.1)
    assert registered(own, files) == made
    publish(entered(tmp_path / "elsewhere"), tmp_path / "published.jsonl")
    with pytest.raises(StudyChangedError) as refused:
        entered(tmp_path, smallest_effect=0.1)
    assert any("smallest_effect" in each for each in refused.value.changes)
    assert registered(own, [*files, tmp_path / "published.jsonl"]) is None


def test_a_study_of_several_machines_has_the_date_of_its_earliest_registration(
    tmp_path: Path,
) -> None:
    made = entered(tmp_path)
    before = made.model_copy(update={"registered": "2020-01-02 03:04"})
    publish(before, tmp_path / "published.jsonl")
    files = [tmp_path / "studies" / "registry.jsonl", tmp_path / "published.jsonl"]
    assert registered(study(), files) == before
    assert entered(tmp_path) == before


def test_field_that_was_added_to_recipes_later_is_not_a_change() -> None:
    made = registration_of(study())
    recipes = {arm: dict(recipe) for arm, recipe in made.recipes.items()}
    for recipe in recipes.values():
        del recipe["keep_checkpoints"]
    assert changes(made.model_copy(update={"recipes": recipes}), made) == []


def test_a_damaged_registry_is_refused(tmp_path: Path) -> None:
    entered(tmp_path)
    with (tmp_path / "studies" / "registry.jsonl").open("a") as file:
        file.write('{"study": 3}\n')
    with pytest.raises(RecipeError) as refused:
        entered(tmp_path)
    assert "study" in refused.value.codes


def test_the_published_registry_has_the_held_out_tasks_of_all_published_runs() -> None:
    known = {each.study.name: each for each in read_registry(EVIDENCE / "registry.jsonl")}
    for file in sorted(EVIDENCE.glob("*/runs.jsonl.gz")):
        for key, run in read_runs(file).items():
            recipe = json.loads(key)["recipe"]
            name = selection_name(recipe["evaluation"]["tasks"])
            [tested] = [
                each
                for each in known[file.parent.name].lists
                if each.use == "evaluation" and each.name == name
            ]
            if tested.held_out:
                assert set(run.results[0].tasks) <= set(tested.held_out)
