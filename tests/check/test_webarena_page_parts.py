"""Tests of reading a page in parts if it is longer than an observation may be."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from environments.webarena.page_parts import PageParts

PAGE = "\n".join(f"[{number}] link 'number {number}'" for number in range(1, 101))


def test_a_short_page_is_shown_unchanged() -> None:
    parts = PageParts(len(PAGE))
    assert parts.shown(PAGE) == PAGE
    assert not parts.turn("down")
    assert not parts.turn("up")


def test_omitted_lines_are_counted_above_and_below() -> None:
    parts = PageParts(1_000)
    first = parts.shown(PAGE)
    held = first.count("link")
    assert first.endswith(f"\n[page cut: {100 - held} more lines below; scroll [down] shows them]")
    assert parts.turn("down")
    assert parts.shown(PAGE).startswith(
        f"[page cut: {held} more lines above; scroll [up] shows them]\n[{held + 1}] link"
    )
    assert parts.turn("up")
    assert parts.shown(PAGE) == first
    parts.turn("down")
    parts.restart()
    assert parts.shown(PAGE) == first


def test_a_page_that_became_shorter_is_shown_from_its_beginning() -> None:
    parts = PageParts(1_000)
    parts.shown(PAGE)
    parts.turn("down")
    parts.shown(PAGE)
    assert parts.shown("[1] heading 'Gone'") == "[1] heading 'Gone'"


@given(
    st.lists(st.text(st.characters(exclude_characters="\n"), max_size=60), min_size=1, max_size=40),
    st.integers(1, 200),
)
def test_parts_show_every_line_once_and_stay_within_the_limit(
    lines: list[str], characters: int
) -> None:
    page, parts = "\n".join(lines), PageParts(characters)
    shown: list[str] = []
    while True:
        text = re.sub(
            r"^\[page cut: \d+ more lines? above; scroll \[up\] shows them\]\n",
            "",
            parts.shown(page),
        )
        text = re.sub(
            r"\n\[page cut: \d+ more lines? below; scroll \[down\] shows them\]$", "", text
        )
        assert len(text) <= characters + len("...")
        shown += text.split("\n")
        if not parts.turn("down"):
            break
    assert len(shown) == len(lines)
    for line, full_line in zip(shown, lines, strict=True):
        assert line == full_line or (
            line.endswith("...") and full_line.startswith(line[:-3]) and len(full_line) > characters
        )
