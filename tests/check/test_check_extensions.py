"""Tests of the conformance checks of algorithms and schedules, built-in and faulty ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from configs.algorithm import ALGORITHMS
from configs.curriculum import Curriculum, Training
from configs.imitation import SFT
from configs.policy_gradient import GRPO, PolicyGradient
from configs.recipe import RecipeError
from flows.cli import main
from tasks.training.algorithms.table import advantages
from tasks.training.check_extensions import Finding, check_algorithm, check_schedule

COUNTER = itertools.count(3)


class Reversed(GRPO):
    """An algorithm that prefers the worse action."""

    def advantages(self, experience: Any) -> Any:
        return -advantages(GRPO(name="grpo", steps=1), experience)


class Unfinished(PolicyGradient):
    """An algorithm without a formula for advantages."""


class Few(SFT):
    """A cloning method that selects a single trajectory."""

    def batch(self, pool: Any, step: int, size: int, seed: int) -> Any:
        return pool[:1]


class Started(GRPO):
    """An algorithm whose `batches` returns an object instead of its class."""

    def advantages(self, experience: Any) -> Any:
        return advantages(GRPO(name="grpo", steps=1), experience)

    def batches(self) -> Any:
        return object()


class Counting(Curriculum):
    """A schedule that depends on the number of calls."""

    def horizon_at(self, step: int, training: Training) -> int:
        return next(COUNTER)


class Falling(Curriculum):
    """A schedule that falls to 0 and below."""

    def horizon_at(self, step: int, training: Training) -> int:
        return 5 - step


def failed_checks(findings: Iterable[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.problem}


@pytest.mark.parametrize("name", ALGORITHMS.built_in)
def test_a_built_in_algorithm_passes(name: str) -> None:
    assert (
        failed_checks(
            check_algorithm({"name": name} | ({"teacher": "any"} if name == "distillation" else {}))
        )
        == set()
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "fixed", "horizon": 4},
        {"kind": "linear", "start": 2, "delta": 1, "every": 5, "maximum": 9},
        {"kind": "success-gated", "horizons": [3, 6]},
        {"kind": "shuffled", "of": {"kind": "stepwise", "horizons": [3, 6], "every": 5}},
    ],
)
def test_a_built_in_schedule_passes(fields: dict[str, Any]) -> None:
    assert failed_checks(check_schedule(fields)) == set()


# The checks also report that this module imports torch.
@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("Reversed", {"direction on two actions"}),
        ("Unfinished", {"advantages per token", "determinism", "direction on two actions"}),
        ("Few", {"selection"}),
        ("Started", {"trainer and batches"}),
    ],
)
def test_faulty_algorithm_fails_its_checks(name: str, problems: set[str]) -> None:
    assert (
        failed_checks(check_algorithm(f"{__name__}:{name}")) - {"no torch for a recipe"} == problems
    )


@pytest.mark.parametrize(
    ("name", "problems"),
    [("Counting", {"pure function"}), ("Falling", {"positive horizons", "ascending horizons"})],
)
def test_faulty_schedule_fails_its_checks(name: str, problems: set[str]) -> None:
    assert (
        failed_checks(check_schedule({"kind": f"{__name__}:{name}"})) - {"no torch for a recipe"}
        == problems
    )


def test_torch_import_at_module_level_is_reported() -> None:
    assert "no torch for a recipe" in failed_checks(check_algorithm(f"{__name__}:Reversed"))


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(RecipeError):
        check_algorithm("nowhere")


def test_command_prints_each_check_and_fails_for_a_faulty_schedule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "check",
                "schedule",
                "linear",
                "--start",
                "2",
                "--delta",
                "1",
                "--every",
                "5",
                "--maximum",
                "9",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == "passed"
    assert main(["check", "schedule", f"{__name__}:Falling"]) == 1
    assert "fail  ascending horizons" in capsys.readouterr().out


def test_command_refuses_an_unknown_name_and_an_unknown_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, named in (
        (["schedule", "steped"], "curriculum.kind"),
        (["algorithm", "grpo", "--clip_lo", "1"], "algorithm.clip_lo"),
    ):
        with pytest.raises(SystemExit) as refused:
            main(["check", *words])
        assert refused.value.code == 2
        assert named in capsys.readouterr().err
