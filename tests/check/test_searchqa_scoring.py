"""Tests of exact match as published with SQuAD."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.searchqa.scoring import exact_match, normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower", "eiffel tower"),
        ("  an   apple a day ", "apple day"),
        ("U.S.A.", "usa"),
        ("8,516,543", "8516543"),
        ("theatre", "theatre"),
        ("Don't", "dont"),
        ("café – Zürich", "café – zürich"),  # only ASCII punctuation is removed
        ("a.k.a. the-man", "aka theman"),  # punctuation is removed first
        ("The The", "the the"),
        ("!?", "!?"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_a_text_is_normalised_as_published(text: str, normal: str) -> None:
    assert normalise(text) == normal


@settings(max_examples=50)
@given(
    st.lists(
        st.text(st.sampled_from("abcxyzé0189"), min_size=2).filter(
            lambda word: word not in ("an", "the")
        ),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_case_space_articles_and_punctuation_make_no_difference(
    words: list[str], data: st.DataObject
) -> None:
    noise = st.sampled_from([" ", "  ", "\n", " the ", " A ", " an ", ", ", "! "])
    written = "".join(
        data.draw(noise) + data.draw(st.sampled_from([word, word.upper(), f"({word})"]))
        for word in words
    )
    assert exact_match(written, ["nothing of the kind", " ".join(words)])
    assert not exact_match(written + " more", [" ".join(words)])


@given(st.text(), st.lists(st.text(min_size=1)))
def test_answer_matches_only_gold_answers_with_its_normal_form(
    answer: str, golds: list[str]
) -> None:
    assert exact_match(answer, golds) == any(
        normalise(gold) == normalise(answer) != "" for gold in golds
    )


@pytest.mark.parametrize("empty", ["", " ", "\n\t"])
@pytest.mark.parametrize("gold", ["The", "a", "!", "Paris"])
def test_an_empty_answer_is_never_right(empty: str, gold: str) -> None:
    assert not exact_match(empty, [gold])


def test_any_complete_gold_answer_matches() -> None:
    golds = ["United States", "USA", "United States of America"]
    assert exact_match("the usa", golds)
    assert not exact_match("United", golds)
    assert not exact_match("United States USA", golds)
    assert not exact_match("USA", [])
