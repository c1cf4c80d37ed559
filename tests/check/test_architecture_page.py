"""ARCHITECTURE.md: every file and folder that it names is there, and every room is named."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_path_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w./-]*/[\w./-]*)`", PAGE))
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_room_is_on_the_page() -> None:
    rooms = [path for path in (ROOT / "tasks").iterdir() if (path / "__init__.py").is_file()]
    assert [room.name for room in rooms if f"`tasks/{room.name}/`" not in PAGE] == []


def test_the_page_fits_on_a_screen_or_two() -> None:
    assert len(PAGE.splitlines()) <= 80
