"""Tests of the guide's example world: an installed package that works through its entry point.

Nothing in this project is changed for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from environments.environment import MEMBERS, WORLD_MEMBERS, Environment, UnknownWorldError, World
from environments.registry import load_world
from flows.checks import check_experiment
from tests.support.counting_servers import ROOT
from tests.support.processes import assert_passes_linter, run_module, run_python

GUIDE = (ROOT / "environments" / "ADDING_A_WORLD.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the guide's package and return its folder."""
    source = tmp_path_factory.mktemp("guessing-world")
    for language, name in (("toml", "pyproject.toml"), ("python", "guessing.py")):
        [text] = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
        (source / name).write_text(text, encoding="utf-8")
    target = tmp_path_factory.mktemp("installed")
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return target


def test_the_package_passes_every_check_of_the_conformance_kit(folder: Path) -> None:
    done = run_module("environments", "check", "guessing", PYTHONPATH=f"{ROOT}:{folder}")
    lines = done.stdout.splitlines()
    assert (done.returncode, {line.split()[0] for line in lines[1:-1]}) == (0, {"pass"}), (
        done.stdout + done.stderr
    )


def test_example_passes_the_type_checker_and_the_linter(folder: Path) -> None:
    checked = folder / "checked.py"
    checked.write_text(
        "from environments.environment import World\nfrom guessing import Guessing\n\nworld: World "
        "= Guessing()\n"
    )
    typed = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(checked)]
    found = subprocess.run(
        typed,
        cwd=folder,
        env={"MYPYPATH": f"{ROOT}:{folder}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert_passes_linter(folder / "guessing.py")


def test_the_recipe_of_the_guide_fits_the_world(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    (tmp_path / "guessing.yaml").write_text(text, encoding="utf-8")
    recipe = load_recipe(str(tmp_path / "guessing.yaml"))
    monkeypatch.syspath_prepend(str(folder))
    lists = load_world(recipe.environment.name).lists
    named = {
        recipe.environment.train_tasks,
        recipe.evaluation.tasks,
        recipe.policy.starter.tasks,
    }
    assert named <= set(lists)
    assert recipe.curriculum.horizons[-1] == recipe.evaluation.horizon  # type: ignore[attr-defined]


def test_an_unknown_world_is_refused_with_the_known_and_the_nearest_name() -> None:
    for name, nearest in (("chess", None), ("textcarft", "textcraft")):
        with pytest.raises(UnknownWorldError) as unknown:
            load_world(name)
        assert (unknown.value.name, unknown.value.nearest) == (name, nearest)
        assert {"babyai", "textcraft"} <= set(unknown.value.known)


PLAY = """
import asyncio
from pathlib import Path
from configs.infrastructure import infra_settings
from configs.recipe import load_recipe
from flows.checks import check_experiment
from flows.collection_session import ask
from flows.commands.collect import collection_arguments
from tasks.agents.agent_factory import open_agent
from tasks.provision.environment_servers import environment_replicas
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings

NAME = "{name}"
fields = {{"environment.name": NAME, "environment.train_tasks": "train", "evaluation.tasks": "test"}}
fields |= {{"policy.starter.tasks": "train"}}
experiment = load_recipe("textcraft", fields)
check_experiment(experiment, infra_settings())
collection, _ = collection_arguments([NAME, "--oracle", "--action-format", "bare", "--tasks", "test"])
with environment_replicas(NAME, state_dir=Path("{state}")) as servers:
    world, tasks = asyncio.run(ask(servers.urls, collection))
    with open_agent(collection, world) as agent:
        with Collector(NAME, servers.urls, agent, collection.rollout, identity=world.identity) as collector:
            requests = [RolloutRequest(task, task, 0, 0) for task in tasks]
            played = collector.collect([Batch("all", requests, RolloutSettings(20, 1.0))])
print(sorted((str(t.outcome), t.reward) for t in played)[0], len(played))
"""


@pytest.mark.parametrize("name", ["guessing", "guessing:Guessing"])
def test_a_recipe_and_a_collection_select_a_world_of_another_package(
    name: str, folder: Path, tmp_path: Path
) -> None:
    code = PLAY.format(name=name, state=tmp_path / "state")
    played = run_python(code, cwd=folder, PYTHONPATH=f"{ROOT}:{folder}")
    assert played == "('success', 1.0) 50"


def test_commands_find_a_world_by_its_entry_point(folder: Path, tmp_path: Path) -> None:
    def output(*command: str) -> str:
        done = run_module(*command, PYTHONPATH=f"{ROOT}:{folder}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "guessing" in output("environments", "worlds").split()
    assert re.search(r"^test +50", output("environments", "tasks", "guessing"), re.MULTILINE)
    measured = output(
        "tasks.evaluation.baselines",
        "guessing",
        "--tasks",
        "test",
        "--n-tasks",
        "10",
        "--horizon",
        "10",
        "--folder",
        str(tmp_path),
    )
    assert re.search(r"oracle.*100", measured)


def attributes(section: str) -> dict[str, str]:
    """Return each attribute and its default from a table of the guide."""
    part = GUIDE[GUIDE.index(section) :].partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    return {name.strip("`").partition("(")[0]: default.strip("`") for name, default, _ in rows}


def test_the_guide_lists_every_attribute_with_its_default() -> None:
    world, environment = (
        attributes("## The attributes of a world"),
        attributes("The attributes of a session"),
    )
    assert set(world) == WORLD_MEMBERS
    assert set(environment) == MEMBERS - {"offers"}
    defaults = {
        name: repr(value)
        for name, value in vars(World).items()
        if isinstance(value, None | bool | int | float | str | tuple)
    }
    assert {
        name: default.replace('"', "'") for name, default in world.items() if name in defaults
    } == {name: default for name, default in defaults.items() if name in WORLD_MEMBERS}
    needed = {"name", "version", "instruction"} | World.__abstractmethods__
    assert {name for name, default in world.items() if default == "required"} == needed
    assert {
        name for name, default in environment.items() if default == "required"
    } == Environment.__abstractmethods__


def test_misspelt_world_in_a_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match=r"environment\.name: .*'textcarft'.*'textcraft'"):
        check_experiment(
            load_recipe("textcraft", {"environment.name": "textcarft"}), InfraSettings()
        )
    with pytest.raises(RecipeError, match="'textcarft'"):
        check_experiment(
            load_recipe("textcraft", {"environment.name": "textcarft"}),
            InfraSettings(environment_urls=["http://127.0.0.1:1"]),
        )
