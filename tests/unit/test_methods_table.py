"""Methods are compared by what their runs measured, with intervals, and runs that never got there are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.recipe import load_recipe
from flows.methods import METHODS
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.methods import MethodRun, draw_methods, methods_table
from tasks.evaluation.statistics import Tally, mean, success_rate


def measured(step: int, *successes: int) -> EvaluationResult:
    tallies = {task: Tally(good, 8) for task, good in enumerate(successes)}
    return EvaluationResult(f"step {step}", step, 16, 8 * len(successes), 0, success_rate(tallies), mean([0.5]), 4.0, 0.1, {}, {}, tallies)


def run(seed: int, *results: EvaluationResult, collapsed: bool = False) -> MethodRun:
    steps = {step: {"rollout/seconds": 50.0, "update/seconds": 9.0, "sync/seconds": 1.0} for step in (1, 2)}
    return MethodRun(seed, results, steps, collapsed)


GOOD = [
    run(0, measured(0, 2, 2, 3), measured(6, 4, 3, 4), measured(12, 6, 5, 8)),
    run(1, measured(0, 2, 1, 3), measured(6, 2, 1, 3), measured(12, 5, 5, 6)),
]
POOR = [run(0, measured(0, 2, 2, 3), measured(12, 2, 2, 2)), run(1, measured(0, 2, 1, 3), measured(12, 2, 2, 3), collapsed=True)]


def test_a_row_holds_rise_steps_time_and_collapses() -> None:
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")
        for line in methods_table({"grpo": GOOD, "rloo": POOR}).splitlines()
        if " | " in line
    }
    grpo, rloo = rows["grpo"], rows["rloo"]
    assert grpo[2:4] == ["27.1 %", "72.9 %"]
    assert grpo[4].startswith("+45.8 [")
    assert grpo[6] == ""
    assert grpo[7:9] == ["9.0 [-29.1, 47.1]", "2/2"]
    assert grpo[9] == "2.0 min"
    assert rloo[6].startswith("-45.8 [")  # (6 - 19) / 24 and (7 - 16) / 24
    assert rloo[7:9] == ["-", "0/2"]
    assert rloo[10].strip(" |") == "1"


def test_methods_are_compared_under_the_same_seeds() -> None:
    table = methods_table({"grpo": GOOD[1:], "rloo": POOR, "sft": GOOD[:1]})
    rloo, sft = (next(line for line in table.splitlines() if line.startswith(f"| {name}")) for name in ("rloo", "sft"))
    assert rloo.split(" | ")[6] == "-37.5"  # the run under seed 1 alone: (7 - 16) / 24
    assert sft.split(" | ")[6] == "-"


def test_a_critic_is_told_apart_from_the_variance_of_what_it_learns() -> None:
    def with_critic(explained: list[float]) -> MethodRun:
        steps = {n + 1: {"critic/explained_variance": share, "critic/loss": 0.05 + 0.01 * n} for n, share in enumerate(explained)}
        return MethodRun(0, GOOD[0].results, steps, collapsed=False)

    runs = [with_critic([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), with_critic([0.02, 0.1, 0.2, 0.3, 0.4, 0.4])]
    note = methods_table({"grpo": GOOD, "ppo": runs}).splitlines()[-1]
    assert note.startswith("The critic of ppo explained 0.01 [-0.12, 0.14] of the returns' variance in the first step and 0.43 [0.11")
    assert "fell to 0.57 of that of a constant. As it is, variance included, it went from 0.055 in the first third to 0.095 in" in note
    assert "critic" not in methods_table({"grpo": GOOD})


def test_the_picture_is_drawn_for_runs_of_unequal_length(tmp_path: Path) -> None:
    draw_methods(tmp_path / "methods.png", {"grpo": GOOD, "rloo": POOR, "ppo": GOOD[:1]})
    assert (tmp_path / "methods.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_valid_recipe(method: str) -> None:
    assert load_recipe("methods", {"algorithm.name": method, **METHODS[method]}).algorithm.name == method
