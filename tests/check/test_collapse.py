"""Tests of collapse detection: healthy runs, signs of a collapse, and roll-backs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from random import Random

import pytest

from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows import events
from flows.progress import RunBar
from flows.run import Run
from flows.scaling_inter import end_collapsed
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.tracker import Tracker
from tasks.training.checkpoint import roll_back, steps_in
from tasks.training.collapse import (
    COLLAPSED,
    HEALTHY,
    STRAINED,
    TrainingCollapsedError,
    checkpoints_kept,
    collapse_note,
    last_good_step,
    rollback_step,
    verdict,
)
from tasks.training.messages import StepDone

GOOD = {
    "rollout/reward": 0.5,
    "rollout/entropy": 0.8,
    "rollout/repeated_share": 0.1,
    "rollout/malformed_share": 0.05,
    "update/kl": 0.01,
    "update/gradient_norm": 0.3,
    "update/loss": 0.0,
}


def run(*stretches: tuple[int, dict[str, float]]) -> list[dict[str, float]]:
    """Return the metrics of consecutive stretches of steps, given as differences from a good step."""
    return [{**GOOD, **different} for steps, different in stretches for _ in range(steps)]


def test_learning_run_is_healthy_at_every_step() -> None:
    random = Random(0)
    history = [
        {
            **GOOD,
            "rollout/reward": 0.2 + 0.012 * i + random.gauss(0, 0.05),
            "rollout/entropy": 0.8 - 0.01 * i,
        }
        for i in range(50)
    ]
    assert {verdict(history[:n]).level for n in range(1, 51)} == {HEALTHY}
    assert collapse_note(dict(enumerate(history, start=1))) == ""


@pytest.mark.parametrize(
    ("sign", "value", "figures"),
    [
        ("rollout/entropy", 0.01, r"0\.800.*0\.010"),
        ("rollout/entropy", 3.0, r"0\.800.*3\.000"),
        ("rollout/repeated_share", 0.9, r"0\.10.*0\.90"),
        ("rollout/malformed_share", 0.6, r"0\.05.*0\.60"),
        ("update/kl", 2.0, r"2\.00"),
        ("update/gradient_norm", 30.0, r"\b30\b"),
    ],
)
def test_sign_alone_is_strain_and_with_a_drop_in_reward_is_collapse(
    sign: str, value: float, figures: str
) -> None:
    strained, collapsed = (
        run((20, {}), (5, {sign: value})),
        run((20, {}), (5, {sign: value, "rollout/reward": 0.2})),
    )
    assert verdict(strained).level == STRAINED
    assert verdict(collapsed).level == COLLAPSED
    assert any(re.search(figures, words) for words in verdict(collapsed).signs)


def test_near_total_loss_of_reward_is_collapse() -> None:
    assert verdict(run((20, {}), (5, {"rollout/reward": 0.02}))).level == COLLAPSED
    assert verdict(run((20, {}), (5, {"rollout/reward": 0.24}))).level == STRAINED


def test_a_negative_reward_that_moves_a_little_is_healthy() -> None:
    moves = run((20, {"rollout/reward": -0.3}), (5, {"rollout/reward": -0.42}))
    assert verdict(moves).level == HEALTHY
    falls = run((20, {"rollout/reward": -0.3}), (5, {"rollout/reward": -0.9}))
    assert verdict(falls).level == STRAINED


def test_dip_of_one_batch_is_healthy() -> None:
    assert (
        verdict(run((20, {}), (1, {"rollout/reward": 0.0, "update/gradient_norm": 5.0}))).level
        == HEALTHY
    )


def test_non_finite_loss_is_collapse_at_once() -> None:
    assert verdict(run((1, {"update/loss": math.nan}))).level == COLLAPSED
    assert verdict(run((1, {"update/gradient_norm": math.inf}))).signs == (
        "update/gradient_norm is not a finite number",
    )


def test_missing_metrics_give_no_sign() -> None:
    assert verdict([{"update/loss": 1.0}] * 30).level == HEALTHY
    assert verdict([]).level == HEALTHY


def test_collapse_note_names_the_step_and_the_last_healthy_step() -> None:
    history = dict(enumerate(run((20, {}), (10, {"rollout/reward": 0.0})), start=1))
    note = collapse_note(history)
    # means of five steps: 0.5, 0.4, 0.3, 0.2 (less than half of 0.5: strained), 0.1, ...
    assert last_good_step(history) == 22
    assert re.findall(r"step (?:was )?(\d+)", note) == ["25", "22"]


@pytest.mark.parametrize("on_collapse", ["stop", "roll_back"])
def test_collapse_is_in_the_run_folder_when_the_run_ends(on_collapse: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, load_recipe("textcraft", {"algorithm.on_collapse": on_collapse}))
    history = run((20, {}), (10, {"rollout/reward": 0.0}))
    done = {"update/seconds": 1.0, "sync/seconds": 0.1}
    with (
        folder.claimed(),
        Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}", "falls", folder.path) as tracker,
        RunBar(30) as bar,
    ):
        running = Run(InfraSettings(runs=tmp_path), folder, tracker, "", TimeBreakdown(), bar)
        with pytest.raises(TrainingCollapsedError) as fall:
            running.follow((StepDone(i, each | done) for i, each in enumerate(history, 1)), "")
    noted = folder.collapse()
    assert noted is not None
    assert (noted.last_good, str(noted)) == (fall.value.last_good, str(fall.value))
    assert noted.last_good == last_good_step(folder.metrics()) == 22


def test_collapse_is_announced_once_even_if_the_run_was_killed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_recipe("quickstart", {"algorithm.on_collapse": "stop"})
    folder, fall = RunFolder(tmp_path, experiment), TrainingCollapsedError("fell", 3)
    folder.path.mkdir()
    folder.note_collapse(fall)
    announced: list[str] = []
    monkeypatch.setattr(events, "announce", lambda event, *_, **__: announced.append(event))
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "quickstart", folder.path)
    settings = InfraSettings(runs=tmp_path)
    with RunBar(experiment.algorithm.steps) as bar:
        run = Run(settings, folder, tracker, "run", TimeBreakdown(), bar)
        for _ in range(2):  # as by a command after the kill, and by one after that
            end_collapsed(run, fall)
    assert announced == ["agentgym.run.collapsed"]


def test_roll_back_keeps_checkpoints_older_than_the_detection_delay() -> None:
    def kept(**overrides: object) -> int:
        return checkpoints_kept(
            load_recipe(
                "textcraft", {name.replace("__", "."): value for name, value in overrides.items()}
            )
        )

    assert kept(keep_checkpoints=2, checkpoint_every=3) == 2
    # The latest checkpoint is kept, and those 3, 6, 9 and 12 steps before it.
    assert kept(keep_checkpoints=2, checkpoint_every=3, algorithm__on_collapse="roll_back") == 5
    assert kept(keep_checkpoints=2, checkpoint_every=20, algorithm__on_collapse="roll_back") == 2


def test_pruning_spares_the_checkpoint_that_a_roll_back_would_restore() -> None:
    strained = {"rollout/entropy": 0.01}  # this sign alone is never a collapse
    history = dict(enumerate(run((40, {}), (60, strained)), start=1))
    rolls_back = load_recipe("textcraft", {"algorithm.on_collapse": "roll_back"})
    assert last_good_step(history) < 50
    assert rollback_step(rolls_back, history, [30, 38, 60, 96, 100]) == {38}
    assert rollback_step(rolls_back, history, [60, 96, 100]) == set()
    assert rollback_step(load_recipe("textcraft"), history, [30, 38]) == set()


def test_roll_back_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    for step in (7, 14, 21):
        (tmp_path / f"step-{step:06d}").mkdir()
    assert roll_back(tmp_path, 15) == 14
    assert sorted(steps_in(tmp_path)) == [7, 14]
    assert roll_back(tmp_path, 0) == 0
