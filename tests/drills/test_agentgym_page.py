"""Tests of the commands in docs/agentgym.md, on small data.

Training commands are checked only, up to the start of the first process.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.infrastructure import infra_settings
from configs.recipe import load_recipe, parse_overrides
from flows.checks import check_experiment
from flows.results import read_results
from tests.drills.test_real_data_pages import ROOT, blocks
from tests.support.processes import local_server

pytestmark = pytest.mark.slow

PATIENCE_S = 1200.0
PAGE = "agentgym.md"
AGENTGYM = str(Path(sys.executable).with_name("agentgym"))
START = [
    {"from": "human", "loss": None, "value": "You craft."},
    {"from": "gpt", "loss": False, "value": "OK."},
]


def commands() -> list[list[str]]:
    """Return the words of each command in the page's sh blocks, with its variables first."""
    text = "\n".join(blocks(PAGE, "sh")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def of_command(name: str) -> list[list[str]]:
    """Return the arguments of each `agentgym NAME` command on the page."""
    return [
        after[2:] for words in commands() if (after := words[words.index("agentgym") :])[1] == name
    ]


@pytest.fixture
def folder(tmp_path: Path, prefect_api: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the files that the page assumes."""
    for name, value in prefect_api.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "start.json").write_text(json.dumps(START))
    (tmp_path / "recipe.yaml").write_text(blocks(PAGE, "yaml")[0])
    for name, numbers in (("train_ids", (3, 4)), ("test_ids", (5, 6))):
        (tmp_path / f"{name}.json").write_text(
            json.dumps([{"item_id": f"textcraft_{number}"} for number in numbers])
        )
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AGENTGYM_RUNS": str(folder / "runs"),
        **variables,
    }
    done = subprocess.run(
        [AGENTGYM, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def agentgym_only(folder: Path) -> Iterator[str]:
    command = [
        sys.executable,
        str(ROOT / "tests" / "support" / "agentgym_only_server.py"),
        "textcraft",
        "--port",
        "{port}",
    ]
    with local_server(
        "agentgym-only", command, health_path="/", state_dir=folder / "servers"
    ) as server:
        yield server.url


def test_every_command_of_the_page_is_tested() -> None:
    names = [words[words.index("agentgym") + 1] for words in commands()]
    assert {name: names.count(name) for name in names} == {
        "train": 3,
        "collect": 1,
        "evaluate": 2,
        "serve": 1,
    }


def test_training_commands_pass_every_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rules = []
    for recipe, *rest in of_command("train"):
        experiment = load_recipe(
            recipe, parse_overrides(rest) | {"policy.model": "starter", "policy.instruction": True}
        )
        check_experiment(
            experiment,
            infra_settings().model_copy(update={"environment_urls": ("http://127.0.0.1:36001",)}),
        )
        rules.append(
            (
                experiment.environment.rules,
                experiment.environment.dialect,
                not isinstance(experiment.policy.conversation_start, str),
            )
        )
    assert rules == [
        ("agentgym", "ours", False),
        ("ours", "ours", True),
        ("agentgym", "agentgym", False),
    ]


def test_a_conversation_start_replaces_the_instruction_of_the_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(
        re.sub(r"^  instruction:.*\n", "", text, flags=re.MULTILINE)
    )
    experiment = load_recipe("recipe.yaml", {"policy.conversation_start": "start.json"})
    assert experiment.environment.instruction is None


def test_an_evaluation_reports_agentgym_rl_metrics_by_category(folder: Path) -> None:
    (command,) = (words for words in of_command("evaluate") if words[0] == "babyai")
    for name, numbers in (("red-ball", (4200, 4201)), ("others", (4202,))):
        (folder / f"{name}.json").write_text(
            json.dumps([{"item_id": f"babyai_{number}"} for number in numbers])
        )
    shown = run(
        folder,
        "evaluate",
        *command,
        "--n-tasks",
        "3",
        "--categories",
        "red-ball.json",
        "others.json",
        "--out",
        str(folder / "out"),
    )
    rows = {line.split("  ")[0].strip() for line in shown.splitlines()}
    assert {"- others", "- red-ball"} <= rows
    (result,) = read_results(folder / "out").values()
    assert set(result.by_tag) == {"red-ball", "others"}
    assert "Avg@n" in (folder / "out" / "evaluation.md").read_text()


def test_an_evaluation_runs_on_a_server_with_only_the_agentgym_dialect(
    folder: Path, agentgym_only: str
) -> None:
    (command,) = (words for words in of_command("evaluate") if words[0] == "textcraft")
    at = command.index("--model")
    command[at : at + 2] = ["--oracle"]  # this server has our tasks, unlike AgentGym's
    run(
        folder,
        "evaluate",
        *command,
        "--out",
        str(folder / "out"),
        AGENTGYM_ENVIRONMENT_URLS=agentgym_only,
    )
    (result,) = read_results(folder / "out").values()
    assert result.success.value == 1.0
    assert set(result.tallies) == {5, 6}


def test_the_collection_runs_on_the_server_that_the_page_starts(folder: Path) -> None:
    (serve,), (collect,) = of_command("serve"), of_command("collect")
    words = [
        "{port}" if before == "--port" else word
        for before, word in zip(["", *serve], serve, strict=False)
    ]
    with local_server("page", [AGENTGYM, "serve", *words], state_dir=folder / "servers") as server:
        shown = run(
            folder, "collect", *collect, "--n-tasks", "2", AGENTGYM_ENVIRONMENT_URLS=server.url
        )
    assert "2 episodes" in shown
