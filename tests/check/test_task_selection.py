"""Tests of the tasks that a recipe selects: a named list, indices, or a file of AgentGym's ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.infrastructure import infra_settings
from configs.recipe import RecipeError, load_recipe
from configs.task_selection import indices, read_ids
from environments.environment import TaskIndexError
from environments.selection import task_indices_of
from environments.textcraft.tasks import task_of
from flows.checks import check_task_lists

FILES = {
    "agentgym.json": json.dumps([{"item_id": "babyai_3"}, {"item_id": "babyai_11"}]),
    "numbers.json": "[3, 11]",
    "lines.txt": "3\n\n11\n",
    "ids.txt": "babyai_3\nbabyai_11",
    "records.jsonl": '{"item_id": "babyai_3"}\n{"item_id": "babyai_11"}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_task_ids_is_read_in_each_of_its_forms(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    experiment = load_recipe(
        "babyai", {"environment.train_tasks": str(path), "evaluation.tasks": [5]}
    )
    assert not isinstance(experiment.environment.train_tasks, str)
    assert indices(experiment.environment.train_tasks) == [3, 11]
    assert experiment.evaluation.tasks == (5,)


def test_file_beside_the_recipe_is_found_and_its_content_changes_the_fingerprint(
    tmp_path: Path,
) -> None:
    recipe = (
        Path("configs/textcraft.yaml")
        .read_text()
        .replace("train_tasks: one-command-train", "train_tasks: ids.json")
    )
    (tmp_path / "recipe.yaml").write_text(recipe)
    prints = set()
    for content in ("[3, 11]", "[3, 12]"):
        (tmp_path / "ids.json").write_text(content)
        prints.add(load_recipe(str(tmp_path / "recipe.yaml")).fingerprint())
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[]", "ids.json"),
        ('{"a": 1}', "{'a': 1}"),
        ('[{"id": 3}]', "{'id': 3}"),
        ("[3, -1]", "-1"),
        ("[true]", "True"),
        ('["babyai_3"]', "'babyai_3'"),
        ("not\nids", "'not'"),
    ],
)
def test_a_file_without_valid_tasks_is_refused_with_the_entry(
    tmp_path: Path, content: str, named: str
) -> None:
    path = tmp_path / "ids.json"
    path.write_text(content)
    with pytest.raises(RecipeError) as refused:
        load_recipe("textcraft", {"environment.train_tasks": str(path)})
    assert named in str(refused.value)
    assert "environment.train_tasks" in str(refused.value)


def test_ids_with_a_set_in_their_name_keep_their_index() -> None:
    assert indices(read_ids('["searchqa_nq_17", 4]')) == [17, 4]


def test_a_file_of_one_line_is_one_task() -> None:
    assert read_ids("17\n") == [17]
    assert read_ids('{"item_id": "babyai_3"}\n') == ["babyai_3"]


def test_agentgyms_ids_of_textcraft_are_resolved_by_the_goal_in_their_record(
    tmp_path: Path,
) -> None:
    """Read the goal from the first observation, since AgentGym's index depends on the server."""
    first = "Crafting commands:\ncraft 4 stick using 2 planks\n\nGoal: craft stick."
    path = tmp_path / "trajectories.json"
    path.write_text(
        json.dumps(
            [{"item_id": "textcraft_17", "conversations": [{"from": "human", "value": first}]}, 3]
        )
    )
    tasks = load_recipe("textcraft", {"evaluation.tasks": str(path)}).evaluation.tasks
    assert tasks == ("textcraft_17: stick", 3)
    assert task_indices_of("textcraft", tasks) == [task_of("stick"), 3]
    assert indices(tasks) == [17, 3]  # AgentGym's own servers use its indices


@pytest.mark.parametrize("item", ["textcraft_17", "textcraft_17: unobtainium"])
def test_an_id_of_textcraft_without_a_known_goal_is_refused_before_anything_starts(
    item: str,
) -> None:
    with pytest.raises(TaskIndexError):
        task_indices_of("textcraft", [item])
    with pytest.raises(RecipeError, match=r"evaluation\.tasks"):
        check_task_lists("textcraft", {"evaluation.tasks": (item,)}, infra_settings())
    assert task_indices_of("babyai", ["babyai_17"]) == [17]
