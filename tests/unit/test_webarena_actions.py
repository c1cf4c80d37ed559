"""WebArena: what the text of an action means, and what is said of a text that means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.environment import InvalidActionError
from environments.webarena.actions import (
    MAX_CHARACTERS,
    Click,
    CloseTab,
    GoBack,
    GoForward,
    Goto,
    Hover,
    NewTab,
    Press,
    Scroll,
    Stop,
    TabFocus,
    Type,
    parse_action,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("click [12]", Click(12)),
        ("  CLICK [12]\n", Click(12)),
        ("click 12", Click(12)),
        ("hover [3]", Hover(3)),
        ("type [7] [red lamp]", Type(7, "red lamp", True)),
        ("type [7] [red lamp] [1]", Type(7, "red lamp", True)),
        ("type [7] [red lamp] [0]", Type(7, "red lamp", False)),
        ("type [7] [red lamp] [press_enter_after=0]", Type(7, "red lamp", False)),
        ("type [7] [a [b] c] [0]", Type(7, "a [b] c", False)),
        ("type [7] [two\nlines] [0]", Type(7, "two\nlines", False)),
        ("type [7] [] [0]", Type(7, "", False)),
        ("press [Ctrl+v]", Press(("Control",), "v")),
        ("press [Control+Shift+ArrowLeft]", Press(("Control", "Shift"), "ArrowLeft")),
        ("press [enter]", Press((), "Enter")),
        ("press [+]", Press((), "+")),
        ("scroll [down]", Scroll("down")),
        ("scroll [direction=up]", Scroll("up")),
        ("new_tab", NewTab()),
        ("tab_focus [2]", TabFocus(2)),
        ("close_tab", CloseTab()),
        ("goto [http://shop.test/cart?x=[1]]", Goto("http://shop.test/cart?x=[1]")),
        ("go_back", GoBack()),
        ("go_forward", GoForward()),
        ("stop [$12.50]", Stop("$12.50")),
        ("stop []", Stop("")),
        ("stop", Stop("")),
        ("stop [the [first] one]", Stop("the [first] one")),
    ],
)
def test_the_published_forms(text: str, meant: object) -> None:
    assert parse_action(text) == meant


def test_the_action_may_stand_in_backticks_anywhere_in_a_reply() -> None:
    reply = "I see the link.\nIn summary, the next action I will perform is ```click [4]```. Not ```click [5]```."
    assert parse_action(reply) == Click(4)
    assert parse_action("```\nstop [a\nb]\n```") == Stop("a\nb")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "There is no action"),
        ("``` ```", "There is no action"),
        ("fly [3]", "The actions are"),
        ("click", "needs a number"),
        ("click [home]", "needs a number"),
        ("click [-1]", "needs a number"),
        ("click [٣]", "needs a number"),
        ("click [" + "9" * 5000 + "]", "needs a number"),
        ("type [3]", "type [12] [some text] [1]"),
        ("type [3] [\x07]", "no keyboard writes"),
        ("type [3] [" + "x" * 6000 + "]", "can be typed at once"),
        ("press [Hyper+x]", "not known"),
        ("press []", "not known"),
        ("press [Control+Control+a]", "not known"),
        ("press [Insert]", "not known"),  # would paste from a clipboard that all sessions share
        ("scroll [left]", "scroll [down]"),
        ("x" * (MAX_CHARACTERS + 1), "at most"),
    ],
)
def test_what_means_nothing_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidActionError, match=r".*") as refused:
        parse_action(text)
    assert why in str(refused.value)


_PIECES = st.sampled_from(
    ["click", "type", "stop", "press", "goto", "scroll", "tab_focus", "[", "]", "1", "```", " ", "+", "\n", "\ud800", "é"]
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("".join), st.binary().map(lambda raw: raw.decode("utf-8", "replace"))))
def test_any_text_is_an_action_or_is_refused_in_words_that_can_travel(text: str) -> None:
    meant, said = None, ""
    try:
        meant = parse_action(text)
    except InvalidActionError as refused:
        said = str(refused)
    assert said.encode() is not None
    assert len(said) < 600
    for part in ("text", "answer", "url"):
        assert getattr(meant, part, "").encode() is not None
