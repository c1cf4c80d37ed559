"""Tests of reading WebArena actions from text, and of refusals with a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.environment import InvalidActionError
from environments.webarena.actions import (
    FORMS,
    MAX_CHARACTERS,
    MAX_TYPED,
    Click,
    Goto,
    Hover,
    Navigate,
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
        ("new_tab", Navigate("new_tab")),
        ("tab_focus [2]", TabFocus(2)),
        ("close_tab", Navigate("close_tab")),
        ("goto [http://shop.test/cart?x=[1]]", Goto("http://shop.test/cart?x=[1]")),
        ("go_back", Navigate("go_back")),
        ("go_forward", Navigate("go_forward")),
        ("stop [$12.50]", Stop("$12.50")),
        ("stop []", Stop("")),
        ("stop", Stop("")),
        ("stop [the [first] one]", Stop("the [first] one")),
    ],
)
def test_published_forms_are_read(text: str, meant: object) -> None:
    assert parse_action(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("click [2] where [2] is link 'X'", Click(2)),
        ("click [2].", Click(2)),
        ("click [ 2 ] to open [it]", Click(2)),
        ("click 2, the link", Click(2)),
        ("hover [3] x", Hover(3)),
        ("scroll [down] now", Scroll("down")),
        ("scroll down, please", Scroll("down")),
        ("scroll [Up].", Scroll("up")),
        ("tab_focus [1] (the shop)", TabFocus(1)),
        ("press [Ctrl+v] to paste [it]", Press(("Control",), "v")),
        ("press []]", Press((), "]")),
        ("press [Control+]] now", Press(("Control",), "]")),
        ("goto [http://shop.test/] and look", Goto("http://shop.test/")),
        ("goto http://shop.test/ and look", Goto("http://shop.test/")),
        ("go_back to the list", Navigate("go_back")),
        ("go_forward.", Navigate("go_forward")),
        ("new_tab [http://shop.test/]", Navigate("new_tab")),
        ("close_tab now", Navigate("close_tab")),
        ("stop [$12.50].", Stop("$12.50")),
        ("stop [$12.50] done", Stop("$12.50")),
        ("stop [one] (see [1])", Stop("one")),
        ("stop [a ] b]", Stop("a ] b")),
        ("stop [a [ b]", Stop("a [ b")),
        ("stop [42", Stop("42")),
        ("stop.", Stop("")),
        ("stop N/A", Stop("N/A")),
        ("type [7] [red lamp] where [7] is textbox 'Search'", Type(7, "red lamp", True)),
        ("type [7] [red lamp] [0] where [7] is textbox 'Search [x]'", Type(7, "red lamp", False)),
        ("type [7] [red lamp].", Type(7, "red lamp", True)),
        ("type [7] [red lamp] [press_enter_after=0] done", Type(7, "red lamp", False)),
        ("type [7] [a ] b] [0]", Type(7, "a ] b", False)),
        ("type [7] [a [ b] [0]", Type(7, "a [ b", False)),
        ("type [7][red lamp][1]", Type(7, "red lamp", True)),
    ],
)
def test_text_after_the_bracket_is_ignored(text: str, meant: object) -> None:
    assert parse_action(text) == meant
    assert parse_action(f"I see it.\n```{text}```") == meant


def test_action_may_be_in_backticks_anywhere_in_a_reply() -> None:
    reply = "I see the link.\nIn summary, the next action I will perform is ```click [4]```. Not ```click [5]```."
    assert parse_action(reply) == Click(4)
    assert parse_action("```\nstop [a\nb]\n```") == Stop("a\nb")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", FORMS),
        ("``` ```", FORMS),
        ("fly [3]", FORMS),
        ("click", "click [12]"),
        ("click [home]", "click [12]"),
        ("click [-1]", "click [12]"),
        ("click [٣]", "click [12]"),
        ("click [" + "9" * 5000 + "]", "click [12]"),
        ("click [1 2]", "click [12]"),
        ("click [12x]", "click [12]"),
        ("click 1.5", "click [12]"),
        ("stop: I would click [5]", "stop [answer]"),
        ("type [3] text", "type [12] [some text] [1]"),
        ("type [3]", "type [12] [some text] [1]"),
        ("type [3] [\x07]", "text"),
        ("type [3] [" + "x" * 6000 + "]", str(MAX_TYPED)),
        ("press [Hyper+x]", "ArrowDown"),
        ("press []", "ArrowDown"),
        ("press [Control+Control+a]", "ArrowDown"),
        ("press [Insert]", "ArrowDown"),  # it pastes from a clipboard that all sessions share
        ("scroll [left]", "scroll [down]"),
        ("x" * (MAX_CHARACTERS + 1), FORMS),
    ],
)
def test_an_invalid_action_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidActionError) as refused:
        parse_action(text)
    assert hint in str(refused.value)


_PIECES = st.sampled_from(
    [
        "click",
        "type",
        "stop",
        "press",
        "goto",
        "scroll",
        "tab_focus",
        "[",
        "]",
        "1",
        "```",
        " ",
        "+",
        "\n",
        "\ud800",
        "é",
    ]
)


@given(
    st.one_of(
        st.text(),
        st.lists(_PIECES).map("".join),
        st.binary().map(lambda raw: raw.decode("utf-8", "replace")),
    )
)
def test_any_text_is_an_action_or_refused_with_an_encodable_message(text: str) -> None:
    meant, message = None, ""
    try:
        meant = parse_action(text)
    except InvalidActionError as refused:
        message = str(refused)
    assert message.encode() is not None
    assert len(message) < 600
    for part in ("text", "answer", "url"):
        assert getattr(meant, part, "").encode() is not None
