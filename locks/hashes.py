"""Writes the sha256 digests of each pinned package into lock files, for `pip install --require-hashes`.

    .venv/bin/python locks/hashes.py locks/*.lock

The digests come from the index that pip is configured with. Run it after a version in a lock file
has changed, and set
PIP_CONFIG_FILE=/dev/null where pip also looks in local folders. A lock file keeps its comments and
its order.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.package_finder import PackageFinder
from pip._internal.models.link import Link
from pip._internal.models.target_python import TargetPython
from pip._internal.utils.misc import redact_auth_from_url

PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = ("x86_64", "aarch64")
GLIBC = range(5, 40)
"""Minor versions of glibc 2 in names of manylinux wheels."""
PLATFORMS = [
    f"{kind}_{machine}"
    for machine in MACHINES
    for kind in ("linux", "manylinux1", "manylinux2010", "manylinux2014")
] + [f"manylinux_2_{minor}_{machine}" for machine in MACHINES for minor in GLIBC]
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
UNHASHED = "# unhashed"
"""A lock file with this line is left as it is."""


def digests(finders: list[PackageFinder], name: str, version: str) -> list[str]:
    """Return the digests of a version's Linux wheels for each Python, and of its source distribution.

    Raises:
        LookupError: The index has no file for one of the Pythons, or a file has no digest.
    """
    files: set[Link] = set()
    for python, finder in zip(PYTHONS, finders, strict=True):
        found = [
            candidate.link
            for candidate in finder.find_all_candidates(name)
            if str(candidate.version) == version
        ]
        if not found:
            raise LookupError(
                f"{name}=={version}: the index has no file for Python {python[0]}.{python[1]}"
            )
        files.update(found)
    missing = sorted(redact_auth_from_url(file.url) for file in files if file.hash_name != "sha256")
    if missing:
        raise LookupError(f"{name}=={version}: the index gives no sha256 digest of {missing[0]}")
    return sorted({str(file.hash) for file in files})


def hashed(lock: Path) -> str:
    """Return the text of a lock file with the digests of each package."""
    command = create_command("download")
    options, _ = command.parse_args([])
    targets = [
        TargetPython(platforms=PLATFORMS, py_version_info=python, implementation="cp")
        for python in PYTHONS
    ]
    lines = [
        line.removesuffix(" \\") for line in lock.read_text().splitlines() if "--hash=" not in line
    ]
    text = []
    with command.main_context():
        session = command.get_default_session(options)
        finders = [command._build_package_finder(options, session, target) for target in targets]
        for line in lines:
            pin = PIN.fullmatch(line)
            found = digests(finders, pin[1], pin[2]) if pin else []
            text.append(
                " \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n"
            )
    return "".join(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        if UNHASHED not in file.read_text().splitlines():
            file.write_text(hashed(file))
