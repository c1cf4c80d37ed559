"""Tests of NUL characters in the spans of a trace."""

from __future__ import annotations

import json

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.tracking.traces import _spans


def test_nul_character_in_a_message_is_replaced() -> None:
    turn = Turn([1], [-0.1], "go\0 left", "you see\0 a wall", [], 0.0, message="go\0 left")
    played = Trajectory(
        "babyai",
        0,
        0,
        0,
        0,
        4,
        0,
        "vllm",
        first_observation="here\0",
        turns=[turn],
        outcome=Outcome.FAILED,
        reason="lost\0",
    )
    for span in _spans(1, played, {"phase": "1\0"}, 0):
        assert "\0" not in span.name
        assert "\0" not in json.dumps(span.to_dict(), ensure_ascii=False)
        assert "u0000" not in json.dumps(span.to_dict(), ensure_ascii=False)


def test_escaped_nul_in_a_message_is_unchanged() -> None:
    written = "a\\u0000 b\\\\u0000 c\0\0 d\\\0"
    played = Trajectory(
        "babyai", 0, 0, 0, 0, 4, 0, "vllm", first_observation=written, outcome=Outcome.FINISHED
    )
    root = next(iter(_spans(1, played, {}, 0)))
    assert written.replace("\0", "\N{REPLACEMENT CHARACTER}") in root.inputs.values()
