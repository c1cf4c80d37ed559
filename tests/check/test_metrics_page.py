"""Tests that docs/metrics.md lists exactly the metrics that the code logs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
STEP = re.compile(r"(rollout|update|critic|sync|checkpoint)/[a-z_{}]+")


def names_in(source: str) -> set[str]:
    """Return the names of step metrics in a module's strings.

    A variable part is written as {name}, as in an f-string.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        text = (
            ast.unparse(node)[1:].strip("'\"")
            if isinstance(node, ast.JoinedStr)
            else getattr(node, "value", None)
        )
        if isinstance(text, str) and STEP.fullmatch(text):
            found.add(text)
    return found


def test_page_lists_exactly_the_logged_step_metrics() -> None:
    logged = {
        name
        for path in (ROOT / "tasks").rglob("*.py")
        for name in names_in(path.read_text(encoding="utf-8"))
    }
    described = {
        match.group(0)
        for match in STEP.finditer(" ".join(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)))
    }
    fragments = {
        name
        for name in logged
        if name.endswith("_") and any(other.startswith(f"{name}{{") for other in logged)
    }
    assert len(logged) > 50
    assert logged - fragments == described
