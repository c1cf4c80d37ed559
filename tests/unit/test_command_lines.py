"""The command lines of the flows: their own examples, and mistakes before the usage."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from configs.recipe import load_recipe, parse_overrides
from flows.arguments import Arguments

OWN_OPTIONS = {"--gpus", "--gpu", "--gpu-memory", "--start-from", "--night", "--n-seeds"}


@pytest.mark.parametrize("flow", ["scaling_inter", "plan", "nightly", "before_after"])
def test_the_help_of_a_flow_shows_examples_of_its_own_that_can_be_used(flow: str) -> None:
    text = subprocess.run([sys.executable, "-m", f"flows.{flow}", "--help"], capture_output=True, text=True, check=True, timeout=120).stdout
    examples = [shlex.split(line) for line in text.splitlines() if line.startswith("  python -m flows.")]
    assert len(examples) >= 3
    for words in examples:
        assert words[2] == f"flows.{flow}"
        recipe, rest = words[3], words[4:]
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        fields = [word for pair in pairs if pair[0] not in OWN_OPTIONS | {"--policy.model"} for word in pair]
        load_recipe(recipe, parse_overrides(fields))
    for option in OWN_OPTIONS & set(text.split()):
        assert option in text.partition("\n")[0] or f"[{option}" in text.partition("\n")[0]


def test_a_mistake_stands_before_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Arguments("python -m flows.plan", "RECIPE [--gpus N]", "Plans.", "examples:")
    parser.add_argument("recipe")
    parser.add_argument("--gpus", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["quickstart", "--gpus", "many"])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert "--gpus" in lines[0]
    assert "'many'" in lines[0]
    assert lines[1].startswith("usage: ")
