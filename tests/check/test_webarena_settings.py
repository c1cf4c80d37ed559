"""Tests that a bad WebArena setting ends the server with one message that names the variable."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.__main__ import main
from environments.webarena.addresses import EMBEDDED
from environments.webarena.judge import Judge
from environments.webarena.page_parts import PAGE_CHARACTERS
from environments.webarena.settings import Settings

ROOT = Path(__file__).parents[2]
TASK = {
    "sites": ["shopping"],
    "task_id": 1,
    "start_url": "__SHOPPING__",
    "intent": "x",
    "storage_state": None,
}
TASK |= {"eval": {"eval_types": ["url_match"], "reference_url": "__SHOPPING__"}}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Listen on a port, and yield its address. Reading the settings only connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def unused() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def test_settings_come_from_the_environment(site: str, tmp_path: Path) -> None:
    without = Settings.read({})
    assert (without.tasks, without.judge, without.page_characters) == (None, None, PAGE_CHARACTERS)
    assert without.addresses.urls is EMBEDDED
    given = Settings.read(
        {
            "WEBARENA_TASKS": str(tmp_path / "config_files"),
            "SHOPPING": f"{site}/",
            "WEBARENA_JUDGE_URL": f"{site}/v1",
            "WEBARENA_JUDGE_MODEL": "m",
            "WEBARENA_PAGE_CHARACTERS": "2000",
            "WEBARENA_SERVICES": f"{site.removeprefix('http://')} ",
        }
    )
    assert given.logins == tmp_path
    assert given.addresses.urls == {"shopping": site}
    assert given.judge == Judge(f"{site}/v1", "m")
    assert given.page_characters == 2_000
    assert (without.services, given.services) == ((), (site.removeprefix("http://"),))


def files(folder: Path) -> dict[str, str]:
    """Write task files with different faults, and return their paths by name."""
    contents = {
        "broken": "{",
        "text": '"a text"',
        "bytes": "\udcff",
        "deep": "[" * 100_000,
        "no_eval": json.dumps({"task_id": 1, "sites": ["shopping"]}),
        "place": json.dumps(TASK | {"geolocation": {"latitude": "north"}}),
        "site": json.dumps(TASK | {"sites": ["ebay"]}),
        "sites": json.dumps(TASK | {"sites": [1]}),
        "map": json.dumps(TASK | {"sites": ["map"]}),
        "start": json.dumps(TASK | {"start_url": "__MAP__"}),
        "phrases": json.dumps(
            TASK
            | {"eval": {"eval_types": ["string_match"], "reference_answers": {"must_include": "x"}}}
        ),
        "login": json.dumps(TASK | {"storage_state": "./.auth/x.json"}),
        "good": json.dumps(TASK),
    }
    for name, text in contents.items():
        (folder / f"{name}.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    return {name: str(folder / f"{name}.json") for name in contents}


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WEBARENA_TASKS": "/nowhere"}, "WEBARENA_TASKS: /nowhere"),
        ({"WEBARENA_TASKS": "EMPTY"}, "empty"),
        ({"WEBARENA_TASKS": "/dev/null"}, "WEBARENA_TASKS: /dev/null"),
        ({"WEBARENA_TASKS": "~no-such-user/x"}, "WEBARENA_TASKS: ~no-such-user/x"),
        ({"WEBARENA_TASKS": "broken"}, "broken.json"),
        ({"WEBARENA_TASKS": "text"}, "text.json"),
        ({"WEBARENA_TASKS": "bytes"}, "bytes.json"),
        ({"WEBARENA_TASKS": "deep"}, "deep.json"),
        ({"WEBARENA_TASKS": "no_eval"}, "task 1"),
        ({"WEBARENA_TASKS": "place"}, "geolocation"),
        ({"WEBARENA_TASKS": "site"}, "sites"),
        ({"WEBARENA_TASKS": "sites"}, "sites"),
        ({"WEBARENA_TASKS": "map"}, "MAP"),
        ({"WEBARENA_TASKS": "start"}, "MAP"),
        ({"WEBARENA_TASKS": "phrases"}, "must_include"),
        ({"WEBARENA_TASKS": "login"}, "x.json"),
        ({"WEBARENA_TASKS": "good", "WEBARENA_LOGINS": "/nowhere"}, "WEBARENA_LOGINS"),
        ({"WEBARENA_TASKS": "good", "SHOPPING": ""}, "SHOPPING_ADMIN"),
        ({"WEBARENA_TASKS": "good", "SHOPPING": "shop.example"}, "SHOPPING is 'shop.example'"),
        (
            {"WEBARENA_TASKS": "good", "SHOPPING": "http://shop:port"},
            "SHOPPING is 'http://shop:port'",
        ),
        ({"WEBARENA_TASKS": "good", "SHOPPING": "UNUSED"}, "Connection refused"),
        (
            {"WEBARENA_TASKS": "good", "SHOPPING": "http://shop.invalid"},
            "SHOPPING is 'http://shop.invalid'",
        ),
        ({"WEBARENA_JUDGE_URL": "UNUSED", "WEBARENA_JUDGE_MODEL": "m"}, "WEBARENA_JUDGE_URL"),
        (
            {"WEBARENA_JUDGE_URL": "judge", "WEBARENA_JUDGE_MODEL": "m"},
            "WEBARENA_JUDGE_URL is 'judge'",
        ),
        ({"WEBARENA_JUDGE_URL": "SITE"}, "WEBARENA_JUDGE_MODEL"),
        ({"WEBARENA_JUDGE_MODEL": "m"}, "WEBARENA_JUDGE_URL"),
        ({"WEBARENA_PAGE_CHARACTERS": "many"}, "WEBARENA_PAGE_CHARACTERS is 'many'"),
        ({"WEBARENA_PAGE_CHARACTERS": "10"}, "WEBARENA_PAGE_CHARACTERS is '10'"),
        ({"WEBARENA_SERVICES": "UNUSED"}, "WEBARENA_SERVICES"),
        ({"WEBARENA_SERVICES": "routes.example"}, "WEBARENA_SERVICES"),
        ({"WEBARENA_SERVICES": "*:5000"}, "WEBARENA_SERVICES"),
        ({"WEBARENA_SERVICES": "routes.invalid:5000"}, "WEBARENA_SERVICES"),
        ({"WEBARENA_SERVICES": "routes.example:99999"}, "WEBARENA_SERVICES"),
        ({"WEBARENA_CHROMIUM": "/nowhere/chromium"}, "WEBARENA_CHROMIUM is '/nowhere/chromium'"),
    ],
)
def test_a_bad_setting_ends_in_one_message(
    variables: dict[str, str],
    named: str,
    site: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    known = {"EMPTY": str(tmp_path / "empty"), "UNUSED": unused(), "SITE": site} | files(tmp_path)
    for name, value in ({"SHOPPING": site} | variables).items():
        monkeypatch.setenv(name, known.get(value, value))
    assert main(["play", "webarena"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_server_with_a_bad_setting_ends_with_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "environments", "serve", "webarena", "--port", "23999"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("WEBARENA_")}
    environment = bare | {"WEBARENA_TASKS": str(tmp_path / "none"), "SHOPPING": "here"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "SHOPPING is 'here'" in done.stderr
