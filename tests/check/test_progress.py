"""Tests of a run's progress: the terminal's bar, plain lines, and the flow run's page."""

from __future__ import annotations

import re

import pytest

from flows.progress import DETAIL_SECONDS, EpisodeBar, RunBar
from tasks.training.messages import Progress, StepDone


def test_the_remaining_time_depends_only_on_the_steps(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("flows.progress.on_terminal", lambda: True)
    with RunBar(10) as bar:
        for name, value in (("_time", lambda: now), ("start_t", 0.0), ("last_print_t", 0.0)):
            monkeypatch.setattr(bar._bar, name, value)
        bar.doing("starter policy")
        now = 100.0
        bar.training("phase 1, horizon 6")
        for step in (1, 2):
            now += 5.0
            bar.show(StepDone(step, {"rollout/success": 0.25, "rollout/turns": 4.0}))
    shown = capfd.readouterr().err
    assert "25%" in shown
    assert "4.0" in shown
    assert re.findall(r"[0-9]/10 \[00:(\d\d)<00:(\d\d), +([0-9.]+)s/step", shown)[-1] == (
        "10",
        "40",
        "5.00",
    )


def test_without_a_terminal_every_step_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with RunBar(3) as bar:
        bar.doing("activity")
        for share in range(5):
            bar.detail(f"starter policy: {share}0 %")
            bar.show(Progress(share, 5))
        bar.training("phase 1, horizon 6")
        for step in (1, 2, 3):
            bar.show(
                StepDone(
                    step,
                    {
                        "rollout/success": 0.25,
                        "rollout/turns": 4.0,
                        "rollout/seconds": 1.5,
                        "update/seconds": 0.5,
                    },
                )
            )
        bar.say("a note")
    assert capfd.readouterr().err.splitlines(keepends=True) == [
        "activity\n",
        "phase 1, horizon 6\n",
        *(f"step {step}/3: success 25%, 4.0 turns, 2.0 s\n" for step in (1, 2, 3)),
        "a note\n",
    ]


def test_without_a_terminal_a_long_activity_shows_its_progress_at_a_limited_rate(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now)
    with RunBar(3) as bar:
        bar.doing("activity")
        for second in range(int(2.5 * DETAIL_SECONDS)):
            now = float(second)
            bar.detail(f"after {second} s")
    after = [int(DETAIL_SECONDS), int(2 * DETAIL_SECONDS)]
    shown = capfd.readouterr().err.splitlines()
    assert shown == ["activity", *(f"after {second} s" for second in after)]


def test_a_collection_without_a_terminal_prints_every_tenth_part(
    capfd: pytest.CaptureFixture[str],
) -> None:
    bar = EpisodeBar(200, before=100, name="islands, horizon 6")
    for _ in range(100):
        bar.finished("success 50%")
    bar.close()
    shown = capfd.readouterr().err
    assert shown.splitlines() == [
        f"islands, horizon 6: episode {n}/200, success 50%" for n in (120, 140, 160, 180, 200)
    ]
    assert "\r" not in shown


def test_the_page_of_the_flow_run_gets_steps_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, logged = 0.0, []
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now)
    with RunBar(100, logged.append) as bar:
        bar.training("phase 1, horizon 6")
        for step in range(1, 101):
            now += 1.0
            bar.show(StepDone(step, {"update/seconds": 1.0}))
    steps = [line for line in logged if "step " in line]
    assert steps[0] == "phase 1, horizon 6, step 1/100: 1.0 s"
    assert steps[-1].startswith("phase 1, horizon 6, step 100/100")
    assert len(steps) == 11
