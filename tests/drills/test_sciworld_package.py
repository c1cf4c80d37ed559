"""Tests that further kinds of SciWorld tasks, interleaved, play as in the package."""

from __future__ import annotations

from typing import Any

from environments.sciworld.world import SciWorld
from tests.check.test_sciworld_world import check_interleaved, package, world
from tests.check.test_sciworld_world import pytestmark as pytestmark

__all__ = ["package", "pytestmark", "world"]


def test_six_interleaved_sessions_match_the_package(world: SciWorld, package: Any) -> None:
    kinds = ("grow-fruit", "boil", "chemistry-mix", "test-conductivity", "find-animal")
    check_interleaved(world, package, (*kinds, "use-thermometer"))
