"""Tests of the built-in worlds with the conformance kit."""

from __future__ import annotations

import pytest

from environments.conformance import check_world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "tasks"),
    [("babyai", 4), ("searchqa", 4), ("textcraft", 4), ("sciworld", 1), ("webarena", 2)],
)
def test_the_world_passes_every_check(world: str, tasks: int) -> None:
    checks = list(check_world(world, tasks=tasks))
    assert {check.result for check in checks} == {"pass"}, "\n".join(map(str, checks))
