"""Tests of reading SearchQA's actions from replies."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from environments.environment import InvalidActionError
from environments.searchqa.actions import MAX_CHARACTERS, Action, AnswerFormError, parse_action


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
    ("reply", "error"),
    [
        ("", AnswerFormError),
        ("Lima", AnswerFormError),
        ("<search>Peru", InvalidActionError),
        ("</search>Peru<search>", InvalidActionError),
        ("<Search>Peru</Search>", InvalidActionError),
        ("<search> \n </search>", InvalidActionError),
        ("<answer></answer>", AnswerFormError),
        (f"<search>{'x' * (MAX_CHARACTERS + 1)}</search>", InvalidActionError),
        (f"<answer>{'x' * (MAX_CHARACTERS + 1)}</answer>", AnswerFormError),
        ("<search>" * 500_000, InvalidActionError),
        ("<search>" * 500_000 + "</search>", InvalidActionError),
    ],
)
def test_a_reply_without_a_valid_action_is_refused(
    reply: str, error: type[InvalidActionError]
) -> None:
    with pytest.raises(InvalidActionError) as refused:
        parse_action(reply)
    assert type(refused.value) is error


@given(
    st.text()
    | st.lists(
        st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "x", " ", "\ud800"])
    ).map("".join)
)
@example("<search>\ud800</search>")
def test_any_text_is_an_action_or_refused_and_the_result_is_encodable(reply: str) -> None:
    try:
        meant = parse_action(reply)
    except InvalidActionError as refused:
        text = str(refused)
    else:
        text = meant.text
        assert meant.text == " ".join(meant.text.split())
        assert 0 < len(meant.text) <= MAX_CHARACTERS
    assert text.encode()
