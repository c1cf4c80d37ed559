"""Tests of the clean-up of actions: enclosing punctuation and AgentGym's character filter."""

from __future__ import annotations

import pytest

from environments.action_text import plain_words, without_punctuation


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("look at (a) door", "look at (a) door"),
        ("(a) or (b)", "(a) or (b)"),
        ("[[look around]]", "[[look around]]"),
        ("**`look around`.**", "look around"),
        ("go to the hallway?!", "go to the hallway"),
        ("move 1, 2", "move 1, 2"),
        ("…", "…"),
        ("**", ""),
        ("", ""),
        ("\n`inventory`\n", "inventory"),
    ],
)
def test_only_enclosing_punctuation_is_removed(text: str, cleaned: str) -> None:
    assert without_punctuation(text) == cleaned
    assert without_punctuation(cleaned) == cleaned


def test_agentgyms_clients_keep_letters_digits_commas_and_single_spaces() -> None:
    assert (
        plain_words("  **craft** 4 minecraft:oak_planks \n using:  1 oak-log, 2 é. ")
        == "craft 4 minecraftoakplanks using 1 oaklog, 2"
    )
