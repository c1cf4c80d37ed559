"""Tests of the conformance kit with worlds that satisfy the contract or break it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from environments.__main__ import main
from environments.conformance import Failed, Kit, check_world
from environments.registry import load_world
from tests.support.counting_servers import ROOT

ODD = "tests.support.odd_worlds"


def kit(world: str) -> Kit:
    name = f"{ODD}:{world}"
    return Kit(name, load_world(name), "ours", 2, 0)


@pytest.mark.parametrize(
    ("world", "check"),
    [
        ("NoInstruction", "attributes"),
        ("SharedTasks", "lists"),
        ("EmptyList", "lists"),
        ("LostOracleWorld", "oracle"),
        ("OracleListedWorld", "floor"),
        ("UnseededWorld", "determinism"),
        ("ProcessDependentWorld", "determinism"),
        ("ProcessDependentWorld", "wire"),
        ("GenerousWorld", "rewards"),
        ("BrittleWorld", "fuzz"),
        ("EndlessWorld", "fuzz"),
    ],
)
def test_world_that_breaks_the_contract_fails_the_matching_check(world: str, check: str) -> None:
    with pytest.raises(Failed):
        getattr(kit(world), check)()
    getattr(kit("SoundWorld"), check)()


def test_world_that_satisfies_the_contract_passes_every_check() -> None:
    assert [(check.name, check.result) for check in check_world(f"{ODD}:SoundWorld", tasks=2)] == [
        (name, "pass")
        for name in (
            "attributes",
            "lists",
            "oracle",
            "floor",
            "determinism",
            "rewards",
            "fuzz",
            "wire",
            "leases",
            "speed",
        )
    ]


def test_an_observation_may_contain_a_line_separator_of_unicode() -> None:
    kit("SeparatedWorld").determinism()


def test_each_check_is_printed_when_it_ends() -> None:
    command = [sys.executable, "-m", "environments", "check", f"{ODD}:SoundWorld", "--tasks", "1"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True
    ) as checking:
        assert checking.stdout is not None
        assert checking.stdout.readline().split()[:2] == ["pass", "attributes"]
        assert checking.poll() is None  # the check of the leases has yet to end
        checking.kill()


def test_failed_check_or_class_that_is_not_a_world_gives_exit_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for world, line in (("BrittleWorld", "fail  fuzz "), ("Sound", "fail  attributes ")):
        status = main(["check", f"{ODD}:{world}", "--tasks", "1"])
        shown = capsys.readouterr().out
        assert (status, line in shown) == (1, True), shown
