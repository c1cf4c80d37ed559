"""Tests of the commands of `python -m environments`."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from environments.textcraft import TASK_LISTS
from tests.support.counting_servers import COUNTING, ROOT
from tests.support.processes import run_python

TIMEOUT_S = 60


def run(*arguments: str, script: bool = False, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", COUNTING if script else "environments"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [*command, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env=environment,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help_shows_an_example_and_imports_no_slow_package(arguments: list[str]) -> None:
    shown = run(*arguments)
    assert shown.returncode == 0
    assert "serve textcraft --port" in shown.stdout
    loaded = run_python(
        "import sys\nfrom environments.__main__ import main\ntry:\n    "
        f"main({arguments})\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *(set(sys.modules) & {'starlette', 'uvicorn', 'aiohttp', 'torch', "
        "'prometheus_client', 'msgspec'}))"
    )
    assert loaded.splitlines()[-1].strip() == "LOADED"


def test_worlds_command_lists_the_worlds() -> None:
    assert "textcraft" in run("worlds").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "chess"], "'chess'"),
        (["serve", "textcraft", "--port", "99999"], "'99999'"),
        (["serve", "textcraft", "--port", "80x"], "'80x'"),
        (["serve", "textcraft", "--max-sessions", "0"], "'0'"),
        (["serve", "textcraft", "--lease", "long"], "'long'"),
        (["tasks", "textcarft"], "usage: python -m environments tasks"),
        (["play", "textcraft", "--task", "100000000"], "100000000"),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(arguments: list[str], expected: str) -> None:
    refused = run(*arguments)
    assert refused.returncode == 2
    assert expected in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_missing_module_is_reported_without_a_traceback() -> None:
    refused = run("serve", "nowhere.world:Nothing")
    assert refused.returncode == 1
    assert "nowhere.world:Nothing" in refused.stderr
    assert "No module named 'nowhere'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_taken_port_is_reported_with_the_option_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run("serve", "textcraft", "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 1
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_episode_is_played_in_the_terminal() -> None:
    played = run("play", "counting", "--task", "3", script=True, text="add 1\n?\nadd 2\nadd 9\n")
    assert played.returncode == 0
    assert "Goal: 3." in played.stdout
    assert "the expert would: add 2" in played.stdout
    assert played.stdout.rstrip().endswith("score 1 after 2 actions")


def test_tasks_command_prints_the_size_and_description_of_each_list() -> None:
    shown = run("tasks", "textcraft")
    assert shown.returncode == 0
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.stdout.splitlines()[1:]}
    assert lines["wood-test"] == ["36", TASK_LISTS["wood-test"]]
    assert int(lines["train"][0]) > 300


def test_tasks_command_lists_the_splits_of_a_world_without_descriptions() -> None:
    shown = run("tasks", "counting", script=True)
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        "train",
        "validation",
        "test",
    ]
