"""Tests of ARCHITECTURE.md: its paths exist, and it names every package of `tasks`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_path_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w./-]*/[\w./-]*)`", PAGE))
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_package_of_tasks_is_on_the_page() -> None:
    packages = [path for path in (ROOT / "tasks").iterdir() if (path / "__init__.py").is_file()]
    assert [package.name for package in packages if f"`tasks/{package.name}/`" not in PAGE] == []


def test_the_page_fits_on_a_screen_or_two() -> None:
    assert len(PAGE.splitlines()) <= 80
