"""Tests of the command `agentgym`: help, examples, imports and errors."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.recipe import load_recipe, parse_overrides
from flows.cli import COMMANDS, main
from flows.command import Arguments
from flows.commands.collect import collection_arguments
from flows.commands.evaluate import evaluation_arguments
from tests.support.processes import run_python

SLOW = {
    "torch",
    "transformers",
    "trl",
    "vllm",
    "ray",
    "prefect",
    "mlflow",
    "pandas",
    "scipy",
    "uvicorn",
    "starlette",
}
OWN_OPTIONS = {
    "--gpus",
    "--gpu",
    "--gpu-memory",
    "--measured",
    "--start-from",
    "--night",
    "--n-seeds",
}
SCRIPT = Path(sys.executable).with_name("agentgym")


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        status = main([command, "--help"])
    except SystemExit as ended:
        status = ended.code
    assert status == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_its_own_usage_and_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys)
    assert text.startswith(f"usage: agentgym {command}")
    assert f"  agentgym {command}" in text.partition("examples:")[2]


@pytest.mark.parametrize("command", ["train", "plan", "nightly", "before-after"])
def test_examples_of_recipe_commands_name_valid_recipes_and_fields(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys)
    examples = [
        shlex.split(line) for line in text.splitlines() if line.startswith(f"  agentgym {command}")
    ]
    assert len(examples) >= 3
    for _, _, recipe, *rest in examples:
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        fields = [
            word
            for pair in pairs
            if pair[0] not in OWN_OPTIONS | {"--policy.model"}
            for word in pair
        ]
        load_recipe(recipe, parse_overrides(fields))
    for option in OWN_OPTIONS & set(text.split()):
        assert option in text.partition("\n")[0] or f"[{option}" in text.partition("\n")[0]


def test_help_imports_no_slow_package() -> None:
    code = f"""
import contextlib, io, json, sys
from flows.cli import COMMANDS, main
loaded = {{}}
for command in COMMANDS:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([command, "--help"])
    loaded[command] = sorted({SLOW!r} & set(sys.modules))
print(json.dumps(loaded))
"""
    assert json.loads(run_python(code)) == {command: [] for command in COMMANDS}


def test_an_unknown_command_is_refused_with_the_names_of_the_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "'trian'" in error
    assert all(f"'{command}'" in error for command in COMMANDS)


def test_installed_script_runs_in_a_folder_that_contains_our_package_names(
    tmp_path: Path,
) -> None:
    for package in ("configs", "environments", "tasks"):
        (tmp_path / package).mkdir()
    (tmp_path / "mine.py").write_text(
        "from environments.textcraft.world import TextCraft\n\n\nclass Mine(TextCraft):\n    pass\n"
    )
    listed = subprocess.run(
        [SCRIPT, "tasks", "mine:Mine"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (listed.returncode, "train" in listed.stdout) == (0, True), listed.stderr


def test_the_module_form_of_the_command_lists_the_commands() -> None:
    module = [sys.executable, "-m", "flows.cli", "--help"]
    shown = subprocess.run(module, capture_output=True, text=True, check=True, timeout=120).stdout
    assert [name for name in COMMANDS if name not in shown] == []


def test_night_that_is_not_a_date_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nightly", "quickstart", "--night", "yesterday"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "--night" in error
    assert "'yesterday'" in error


def test_an_error_names_only_the_invalid_item_of_a_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "textcraft", "--oracle", "--horizon", "0"])
    fields = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    assert [line.partition(":")[0].strip() for line in fields] == ["horizons.0"]


@pytest.mark.parametrize("value", ["-4", "0", "nan", "much"])
def test_memory_of_a_gpu_that_is_not_positive_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "quickstart", "--gpu-memory", value])
    assert ended.value.code == 2
    assert f"--gpu-memory: {value!r}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["{bad", "[1]"])
def test_variables_of_a_chat_template_that_are_no_json_object_are_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluation_arguments(["textcraft", "--oracle", "--chat-template-kwargs", value])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"--chat-template-kwargs: {value!r}" in error
    assert "enable_thinking" in error


@pytest.mark.parametrize("parse", [evaluation_arguments, collection_arguments])
def test_output_folder_that_cannot_be_written_is_refused_before_anything_starts(
    parse: Callable[[list[str]], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        parse(["textcraft", "--oracle", "--out", str(tmp_path / "file" / "results")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "--out" in error
    assert str(tmp_path) in error


def test_error_is_printed_before_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Arguments("agentgym plan", "RECIPE [--gpus N]", "Plans.", "examples:")
    parser.add_argument("recipe")
    parser.add_argument("--gpus", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["quickstart", "--gpus", "many"])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert "--gpus" in lines[0]
    assert "'many'" in lines[0]
    assert lines[1].startswith("usage: ")


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("None", 0, ""),
        ("3", 3, ""),
        ("sys.exit('refused')", 1, "refused\n"),
        ("interrupted()", 130, "\nStopped.\n"),
    ],
)
def test_a_process_exits_with_the_status_of_its_command_after_the_exit_handlers(
    end: str, status: int, message: str
) -> None:
    program = f"""
import atexit, sys, threading
from concurrent.futures import ThreadPoolExecutor
from flows.exit import exit_with

def interrupted():
    ThreadPoolExecutor(1).submit(threading.Event().wait)  # Python would wait for it
    raise KeyboardInterrupt

atexit.register(print, 'handled')
exit_with(lambda: {end})
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "handled\n", message)
