"""What a person sees while a run goes on."""

from __future__ import annotations

import re

import pytest

from flows.progress import RunBar
from tasks.training.messages import StepDone


def test_the_forecast_knows_steps_alone_and_not_what_went_before_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
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
    assert "success 25%, 4.0 turns" in shown
    assert re.findall(r"[0-9]/10 \[00:(\d\d)<00:(\d\d), +([0-9.]+)s/step", shown)[-1] == ("10", "40", "5.00")
