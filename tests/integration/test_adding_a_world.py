"""The guide's example is what it says: one file, served as it is, deterministic, robust, and solved by its oracle over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.client import EnvironmentClient, RefusedError
from environments.environment import UnknownWorldError, World
from environments.registry import WORLDS, load_world
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
