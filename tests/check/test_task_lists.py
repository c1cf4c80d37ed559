"""Tests of the task lists and variables that a package declares without loading its world."""

from __future__ import annotations

import pytest

from environments.registry import load_world, task_lists_of, variables_of
from environments.task_lists import UnknownTaskListError
from tests.support.processes import run_python


@pytest.mark.parametrize("name", ["babyai", "sciworld", "textcraft", "webarena"])
def test_declared_task_lists_are_those_of_the_world(name: str) -> None:
    described, world = task_lists_of(name), load_world(name)
    assert described is not None
    for each in described:
        assert len(world.tasks(each)) > 0
    with pytest.raises(UnknownTaskListError) as refusal:
        world.tasks("no-such-list")
    assert set(refusal.value.known) == set(described)


def test_task_lists_are_unknown_if_a_variable_replaces_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "test" in (task_lists_of("webarena") or {})
    monkeypatch.setenv("WEBARENA_TASKS", "/data/tasks")
    assert task_lists_of("webarena") is None


def test_task_lists_are_read_without_loading_worlds() -> None:
    program = (
        "import sys; from environments.registry import WORLDS, task_lists_of; [task_lists_of(name) "
        "for name in WORLDS]; "
        "print(*(set(sys.modules) & {*(entry.partition(':')[0] for entry in WORLDS.values()), "
        "'numpy', 'minigrid', 'playwright'}))"
    )
    assert run_python(program) == ""


def test_servers_get_the_variables_that_their_world_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOPPING", "WEBARENA_TASKS", "SEARCHQA_DATA", "TEXTCRAFT_X"):
        monkeypatch.setenv(name, "/data")
    assert {"SHOPPING", "WEBARENA_TASKS"} == set(variables_of("webarena"))
    assert {"SEARCHQA_DATA", "TEXTCRAFT_X"} == set(variables_of("textcraft+searchqa"))
    assert variables_of("nowhere") == variables_of("no.module:World") == {}
