"""Tests of the collector's memory use with many concurrent sessions.

`tests/soaks/collector.py` has the command for the full number.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soaks.collector import soak


@pytest.mark.slow
def test_two_thousand_concurrent_sessions_use_constant_memory(state_dir: Path) -> None:
    found = soak(2000, 6000, state_dir)
    assert found.sessions >= 2000
    assert (found.failed, found.left) == (0, 0)
    assert found.growth < 0.05
