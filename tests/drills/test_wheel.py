"""Tests that the wheel has all files of the packages, including those that are not Python."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT
from tests.support.processes import run_python

PACKAGES = ("configs", "dashboards", "environments", "flows", "tasks")


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    files = {
        str(path.relative_to(source))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    run_python(build, cwd=source)
    [wheel] = tmp_path.glob("*.whl")
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()
    assert {
        "environments/webarena/sites/templates/page.html",
        "environments/sciworld/Simulator.java",
    } <= files
