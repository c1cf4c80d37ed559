"""Tests that starter builds are reproducible, and that a killed build leaves no policy."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tasks.starter.starter_policy import find_starter_policy
from tests.check.test_starter_policy import BARE, TINY, bare, build, files
from tests.support.processes import run_module, run_python

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processor cores")


@pytest.mark.parametrize(
    "assisted_tokens",
    [
        pytest.param(10**9, id="one-process"),
        pytest.param(
            0,
            id="two",
            marks=TWO_CORES,
        ),
    ],
)
def test_killed_build_leaves_no_starter_policy(tmp_path: Path, assisted_tokens: int) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    program = (
        "import os, signal; from pathlib import Path; from configs.experiment import Policy\n"
        "from tasks.starter import starter_policy; from tasks.starter.starter_policy import "
        "build_starter_policy\n"
        f"starter_policy.ASSISTED_TOKENS = {assisted_tokens}\n"
        f"policy = Policy.model_validate_json({BARE.model_dump_json()!r})\n"
        f"build_starter_policy(policy, 'textcraft', 0, Path({str(killed)!r}), lambda *_: "
        "os.kill(os.getpid(), signal.SIGKILL))"
    )
    run_python(program, status=-signal.SIGKILL)
    assert [path for path in killed.iterdir() if path.is_dir()]
    assert find_starter_policy(BARE, "textcraft", 0, killed) is None
    report = build(0, killed)
    assert files(report) == files(build(0, undisturbed))
    assert [path for path in killed.iterdir() if path.is_dir()] == [report.path]


@TWO_CORES
def test_two_processes_build_the_same_bytes_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = build(0, tmp_path / "one")
    monkeypatch.setattr("tasks.starter.starter_policy.ASSISTED_TOKENS", 0)
    assert files(build(0, tmp_path / "two")) == files(alone)
    assert [
        path for path in (tmp_path / "two").iterdir() if path.suffix not in (".lock", ".jsonl")
    ] == [tmp_path / "two" / alone.path.name]


def test_command_builds_and_prints_its_report(tmp_path: Path) -> None:
    config = TINY.model_copy(update={"tokens": 500})
    options = ("--folder", str(tmp_path), "--seed", "5", "--config", config.model_dump_json())
    answer = run_module("tasks.starter", *options)
    printed = json.loads(answer.stdout)
    found = find_starter_policy(bare(tokens=500), "textcraft", 5, tmp_path)
    assert found is not None
    assert printed["path"] == str(found.path)
    assert printed["parameters"] == found.parameters
    assert "loss" in answer.stderr
