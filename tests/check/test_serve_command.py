"""Tests of `agentgym serve`: worlds, policies with the settings of their checkpoint, champions."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from configs.model_folder import ModelError, write_recipe
from configs.recipe import RecipeError, load_recipe
from flows.cli import main
from flows.commands.serve import champion, served
from tasks.evaluation.nights import Night, write_night


def test_name_that_is_not_a_world_is_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("textcraft", "nowhere/model"):
        with pytest.raises(SystemExit):
            main(["serve", name, "--help"])
        shown[name] = capsys.readouterr().out
    assert "--lease" in shown["textcraft"]
    assert "--record" in shown["nowhere/model"]


def test_a_misspelt_world_is_not_taken_for_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "textcarft"])
    assert ended.value.code == 2
    assert "'textcraft'" in capsys.readouterr().err


def test_the_help_without_a_name_describes_worlds_and_policies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--lease" in text
    assert "--record" in text


@pytest.mark.parametrize("command", [["serve", "{policy}"], ["view", "--runs", "{runs}"]])
def test_a_port_that_cannot_be_used_is_refused_before_anything_is_printed(
    command: list[str], policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(policy=policy, runs=tmp_path) for word in command]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (str(taken.getsockname()[1]), "99999", "80x"):
            with pytest.raises(SystemExit) as ended:
                main([*words, "--port", port])
            printed = capsys.readouterr()
            assert ended.value.code not in (None, 0)
            assert port in f"{ended.value.code}{printed.err}"
            assert printed.out == ""


def test_a_missing_model_ends_the_command_before_an_engine_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "./nowhere"])
    assert ended.value.code == 2
    assert "./nowhere" in capsys.readouterr().err


def test_a_checkpoint_is_served_with_the_settings_of_its_recipe(
    policy: str, tmp_path: Path
) -> None:
    for file in Path(policy).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    recipe = load_recipe(
        "textcraft",
        {"policy.model": policy, "policy.dtype": "float32", "rollout.trajectory_tokens": 700},
    )
    write_recipe(tmp_path, recipe)
    options = argparse.Namespace(model=str(tmp_path), dtype=None)
    source, rollout = served(options, {"rollout.turn_tokens": 9})
    assert (source.model, source.dtype) == (str(tmp_path), "float32")
    assert (rollout.trajectory_tokens, rollout.turn_tokens) == (700, 9)
    for override in ({"algorithm.steps": 3}, {"rollout.turn_token": 9}):
        with pytest.raises(RecipeError):
            served(options, override)


def test_the_champion_is_the_last_promoted_challenger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path))
    with pytest.raises(ModelError):
        champion("champion")
    nights = [
        ("2026-11-20", "a", "first"),
        ("2026-11-21", "b", "better"),
        ("2026-11-22", "c", "not better"),
    ]
    for date, checkpoint, verdict in nights:
        write_night(
            tmp_path / "nights" / "quickstart",
            Night(date, 1, "", challenger=checkpoint, verdict=verdict),
        )  # type: ignore[arg-type]
    assert champion("champion") == champion("champion/quickstart") == "b"
    write_night(
        tmp_path / "nights" / "textcraft",
        Night("2026-11-20", 1, "", challenger="d", verdict="first"),
    )
    with pytest.raises(ModelError):
        champion("champion")
    assert champion("champion/textcraft") == "d"
