"""Test of `make test` with CI=true: a test that is skipped fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.counting_servers import ROOT

TESTS = """
import pytest
@pytest.mark.skipif(True, reason="there is no Java")
def test_package(): pass
@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no CUDA device")
def test_gpu(): pass
@pytest.mark.xfail
def test_known(): assert False
"""


def test_skip_because_of_a_missing_package_fails_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(
        'import pytest\npytest.importorskip("not_installed_anywhere")'
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(tmp_path)]
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    } | {"CI": "true"}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert "1 skipped, 1 xfailed, 2 errors" in done.stdout, done.stdout
    assert "there is no Java\nWith CI=true a skipped test fails" in done.stdout
    assert done.returncode == 1
