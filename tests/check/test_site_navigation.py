"""Tests of the documentation pages: navigation, line length and version."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(entry: Any) -> Iterator[str]:
    """Yield the pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for each in (
        entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    ):
        yield from pages(each)


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    listed = list(pages(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written - set(listed) == set()


def test_source_lines_of_pages_have_at_most_100_columns_outside_tables() -> None:
    """Skip Python code, which ruff formats, and the glossary's links, which cannot be broken."""
    long = []
    for page in [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]:
        text = re.sub(
            r"^```python.*?^```$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.MULTILINE | re.DOTALL,
        )
        long += [
            f"{page.name}: {line}"
            for line in text.splitlines()
            if len(line) > 100 and not line.startswith(("|", "  [`"))
        ]
    assert long == []


def test_package_site_citation_and_changelog_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"Version {version}," in (ROOT / "mkdocs.yml").read_text()
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()
