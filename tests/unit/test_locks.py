"""The lock files: a digest for every package, and the parts of them that images install."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = Path(__file__).parents[2] / "locks"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)
UNHASHED = {"torch-cpu.lock"}
IMAGES = {"worlds": (), "searchqa-facts": ("worlds",), "sciworld": ("worlds",), "webarena": ("worlds",), "services": ()}
"""The parts of base.lock that images install, and which other parts are installed before."""


def listed(name: str) -> tuple[list[str], set[str]]:
    """The packages that an image imports, and all that it installs."""
    _, imported, *required = (LOCKS / "images" / name).read_text().splitlines()
    return imported.split(), {word for line in (imported, *required) for word in line.split()}


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda lock: lock.name)
def test_every_package_has_a_digest(lock: Path) -> None:
    pins = PIN.findall(lock.read_text())
    assert pins
    assert len(pins) == sum("==" in line for line in lock.read_text().splitlines())
    assert all(hashes for _, _, hashes in pins) != (lock.name in UNHASHED)


def test_installed_versions_are_those_of_the_locks() -> None:
    for lock in ("build.lock", "base.lock", "dev.lock"):
        for name, version, _ in PIN.findall((LOCKS / lock).read_text()):
            try:
                assert importlib.metadata.version(name) == version, name
            except importlib.metadata.PackageNotFoundError:
                assert name == "async-timeout"  # of Python 3.11.0 to 3.11.2


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_an_image_installs_all_that_its_packages_require(image: str) -> None:
    pinned = {canonicalize_name(name) for name, _, _ in PIN.findall((LOCKS / "base.lock").read_text())}
    wanted, installs = listed(image)
    assert installs <= pinned
    for before in IMAGES[image]:
        installs |= listed(before)[1]
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(name), "") for name in wanted]
    while left:
        requirement, _ = left.pop()
        name = canonicalize_name(requirement.name)
        assert name in installs, f"{image}: {name}"
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in importlib.metadata.requires(name) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left.append((needed, extra))
