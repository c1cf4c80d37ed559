"""Tests of docs/glossary.md: links, order of the terms and length of the sentences."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\[`([^`]+)`\]\(([^)]+)\)")
MOST_WORDS = 25

ENTRIES = [
    (term, " ".join(LINK.sub("", body).rstrip(", \n").split()), LINK.findall(body))
    for term, body in re.findall(
        r"^- \*\*(.+?)\*\*: (.+?)(?=^- \*\*|\Z)",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
]


def test_every_entry_links_to_existing_files() -> None:
    assert [term for term, _, links in ENTRIES if not links] == []
    assert [
        path for _, _, links in ENTRIES for path, _ in links if not (ROOT / path).is_file()
    ] == []
    assert [
        path for _, _, links in ENTRIES for path, target in links if target != f"../{path}"
    ] == []


def test_terms_are_sorted_and_unique() -> None:
    terms = [term.casefold() for term, _, _ in ENTRIES]
    assert len(terms) > 60
    assert terms == sorted(set(terms))


def test_definitions_are_one_or_two_short_sentences() -> None:
    sentences = {term: re.split(r"(?<=\.)\s+", text) for term, text, _ in ENTRIES}
    assert [term for term, found in sentences.items() if len(found) > 2] == []
    assert [
        each for found in sentences.values() for each in found if len(each.split()) > MOST_WORDS
    ] == []


def test_every_list_item_is_an_entry() -> None:
    items = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- ")
    ]
    assert len(items) == len(ENTRIES)
