"""What a reply means."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from environments.environment import InvalidActionError
from environments.searchqa.actions import MAX_CHARACTERS, Action, parse_action


@pytest.mark.parametrize(
    ("reply", "meant"),
    [
        ("<search>capital of Peru</search>", Action("search", "capital of Peru", True)),
        ("<answer> Lima </answer>\n", Action("answer", "Lima", True)),
        ("<think>I know.</think>\n<answer>Lima</answer>", Action("answer", "Lima", True)),
        ("<answer>Lima</answer> I am sure.", Action("answer", "Lima", False)),
        ("<search>Peru\n  capital</search>", Action("search", "Peru capital", True)),
        ("<search>a</search><answer>b</answer>", Action("search", "a", False)),
        ("<answer>b</answer><search>a</search>", Action("answer", "b", False)),
        ("<search>never closed <answer>b</answer>", Action("answer", "b", True)),
        ("</answer><answer>b</answer>", Action("answer", "b", True)),
        ("<search>a <answer>b</answer></search>", Action("search", "a <answer>b</answer>", True)),
        ("<answer>x \ud800</answer>", Action("answer", "x ?", True)),
    ],
)
def test_the_first_complete_action_counts(reply: str, meant: Action) -> None:
    assert parse_action(reply) == meant


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "no complete action"),
        ("Lima", "no complete action"),
        ("<search>Peru", "no complete action"),
        ("</search>Peru<search>", "no complete action"),
        ("<Search>Peru</Search>", "no complete action"),
        ("<search> \n </search>", "The search is empty"),
        ("<answer></answer>", "The answer is empty"),
        (f"<search>{'x' * (MAX_CHARACTERS + 1)}</search>", f"The search has {MAX_CHARACTERS + 1} characters; at most {MAX_CHARACTERS}"),
        ("<search>" * 500_000, "no complete action"),
        ("<search>" * 500_000 + "</search>", "characters; at most"),
    ],
)
def test_what_is_no_action_is_refused_with_what_would_be(reply: str, said: str) -> None:
    with pytest.raises(InvalidActionError, match=said):
        parse_action(reply)


@given(st.text() | st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "x", " ", "\ud800"])).map("".join))
@example("<search>\ud800</search>")
def test_any_text_is_an_action_or_refused_and_what_is_meant_can_be_written(reply: str) -> None:
    try:
        meant = parse_action(reply)
    except InvalidActionError as refused:
        said = str(refused)
    else:
        said = meant.text
        assert meant.text == " ".join(meant.text.split())
        assert 0 < len(meant.text) <= MAX_CHARACTERS
    assert said.encode()
