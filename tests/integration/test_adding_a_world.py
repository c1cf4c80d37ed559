"""The guide's example is what it says: one file, served as it is, deterministic, robust, and solved by its oracle over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from environments.client import EnvironmentClient, RefusedError
from environments.environment import UnknownWorldError, World
from environments.registry import WORLDS, load_world
from flows.checks import check_experiment
from tasks.provision.local import LocalServer
from tests.support.counting_servers import ROOT

GUIDE = (ROOT / "environments" / "ADDING_A_WORLD.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example lies, as the guide says, but outside of the package."""
    [code] = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    root = tmp_path_factory.mktemp("outside")
    (root / "guessing").mkdir()
    (root / "guessing" / "__init__.py").touch()
    (root / "guessing" / "world.py").write_text(code, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    spec = importlib.util.spec_from_file_location("guessing_of_the_guide", folder / "guessing" / "world.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: World = module.Guessing()
    return made


@pytest.fixture(scope="module")
def url(folder: Path, state_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "environments", "serve", "guessing.world:Guessing", "--port", "{port}"]
    server = LocalServer("guessing", command, state_dir=state_dir, environment={"PYTHONPATH": f"{ROOT}:{folder}"})
    server.start()
    yield server.url
    server.end()


def test_the_example_is_served_and_its_oracle_solves_every_task_of_its_list(url: str, world: World) -> None:
    async def play(client: EnvironmentClient, index: int) -> float:
        session, seen = await client.start(index)
        mirrored = world.create()
        assert mirrored.reset(index) == seen
        score, done = 0.0, False
        while not done:
            action = mirrored.oracle_action()
            step = await client.step(session, action)
            assert step == mirrored.step(action)
            score, done = score + step.reward, step.done
        await client.close(session)
        return score

    async def play_all() -> None:
        async with EnvironmentClient([url]) as client:
            told = await client.world()
            assert (told.name, told.instruction) == (world.name, world.instruction)
            tasks = await client.tasks("guessing-20")
            assert await asyncio.gather(*(play(client, index) for index in tasks)) == [1.0] * 20
            with pytest.raises(RefusedError, match="guessing has no task 500"):
                await client.start(500)

    asyncio.run(play_all())


@pytest.mark.parametrize("action", ["", "guess", "guess 0", "guess 99999999999999999999", "guess ١٢", "\x00\ud800", "guess 1 " * 10_000])
def test_the_example_answers_any_action(world: World, action: str) -> None:
    session = world.create()
    session.reset(0)
    step = session.step(action)
    assert step.observation
    assert not step.done


def test_the_splits_of_the_example_share_no_task(world: World) -> None:
    lists: list[Any] = [world.tasks(name) for name in ("train", "validation", "test")]
    assert sum(map(len, lists)) == len(set().union(*lists))


def test_the_line_that_the_guide_shows_is_a_line_of_the_registry() -> None:
    [line] = re.findall(r'^    "guessing": "(.*)",$', GUIDE, re.MULTILINE)
    assert line.split(":")[0] == WORLDS["textcraft"].split(":")[0].replace("textcraft", "guessing")


def test_the_example_keeps_to_the_contract_and_to_the_style_of_the_project(folder: Path) -> None:
    checked = folder / "checked.py"
    checked.write_text("from environments.environment import World\nfrom guessing.world import Guessing\n\nworld: World = Guessing()\n")
    typed = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(checked)]
    style = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), str(folder / "guessing")]
    for command in (typed, style):
        found = subprocess.run(
            command, cwd=folder, env={"MYPYPATH": f"{ROOT}:{folder}", "PATH": ""}, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr


def test_an_unknown_name_is_told_with_the_names_that_exist() -> None:
    with pytest.raises(UnknownWorldError, match=r"there are: babyai, .*textcraft"):
        load_world("chess")
    with pytest.raises(UnknownWorldError, match="no world is called 'textcarft'; did you mean 'textcraft'"):
        load_world("textcarft")


PLAYED = """
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
fields = {{"environment.name": NAME, "environment.train_tasks": "train", "evaluation.tasks": "guessing-20"}}
fields |= {{"policy.starter.tasks": "train"}}
experiment = load_recipe("textcraft", fields)
check_experiment(experiment, infra_settings())
collection, _ = collection_arguments([NAME, "--oracle", "--action-format", "bare", "--tasks", "guessing-20"])
with environment_replicas(NAME, backend="local", state_dir=Path("{state}")) as servers:
    world, tasks = asyncio.run(ask(servers.urls, collection))
    with open_agent(collection, world) as agent:
        with Collector(NAME, servers.urls, agent, collection.rollout, identity=world.identity) as collector:
            requests = [RolloutRequest(task, task, 0, 0) for task in tasks]
            played = collector.collect([Batch("all", requests, RolloutSettings(20, 1.0))])
print(sorted((str(t.outcome), t.reward) for t in played)[0], len(played))
"""


def run_in(folder: Path, name: str, state: Path, **variables: str) -> str:
    code = PLAYED.format(name=name, state=state)
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_recipe_and_a_collection_name_a_world_that_lies_elsewhere_by_its_class(folder: Path, tmp_path: Path) -> None:
    said = run_in(folder, "guessing.world:Guessing", tmp_path / "state", PYTHONPATH=f"{ROOT}:{folder}")
    assert said == "('success', 1.0) 20"


def test_a_folder_and_the_line_of_the_guide_are_all_that_a_recipe_needs(folder: Path, tmp_path: Path) -> None:
    """In a copy of the project, to which nothing else is done."""
    copy = tmp_path / "copy"
    for package in ("configs", "environments", "tasks", "flows"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(folder / "guessing", copy / "environments" / "guessing")
    [line] = re.findall(r'^    "guessing": ".*",$', GUIDE, re.MULTILINE)
    registry = copy / "environments" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(text.replace('    "sciworld":', f'{line}\n    "sciworld":'), encoding="utf-8")
    assert run_in(copy, "guessing", tmp_path / "state", PYTHONPATH=str(copy)) == "('success', 1.0) 20"


def test_a_name_spelt_wrong_in_a_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"environment\.name: no world is called 'textcarft'; did you mean 'textcraft'"):
        check_experiment(load_recipe("textcraft", {"environment.name": "textcarft"}), InfraSettings())
    with pytest.raises(RecipeError, match="'textcarft'"):
        check_experiment(
            load_recipe("textcraft", {"environment.name": "textcarft"}), InfraSettings(environment_urls=["http://127.0.0.1:1"])
        )
