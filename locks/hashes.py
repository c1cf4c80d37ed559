"""Writes the sha256 digests of each pinned package into lock files, for `pip install --require-hashes`.

    .venv/bin/python locks/hashes.py locks/*.lock

The digests come from the index that pip is configured with. Run it after a version in a lock file has changed, and set
PIP_CONFIG_FILE=/dev/null where pip also looks in local folders. A lock file keeps its comments and its order.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.package_finder import PackageFinder
from pip._internal.models.target_python import TargetPython
from pip._internal.utils.misc import redact_auth_from_url

MACHINES = ("x86_64", "aarch64")
GLIBC = range(5, 40)
"""Minor versions of glibc 2 in names of manylinux wheels."""
PLATFORMS = [f"{kind}_{machine}" for machine in MACHINES for kind in ("linux", "manylinux1", "manylinux2010", "manylinux2014")] + [
    f"manylinux_2_{minor}_{machine}" for machine in MACHINES for minor in GLIBC
]
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
UNHASHED = "# unhashed"
"""A lock file with this line is left as it is."""


def digests(finder: PackageFinder, name: str, version: str) -> list[str]:
    """Returns the digests of a version's wheels for Python 3.11 on Linux, and of its source distribution.

    Raises:
        LookupError: The index has no such file, or no digest of it.
    """
    files = [found.link for found in finder.find_all_candidates(name) if str(found.version) == version]
    missing = [redact_auth_from_url(file.url) for file in files if file.hash_name != "sha256"]
    if missing or not files:
        raise LookupError(f"{name}=={version}: " + (f"no sha256 digest of {missing[0]}" if missing else "the index has no file"))
    return sorted({str(file.hash) for file in files})


def hashed(lock: Path) -> str:
    """Returns the text of a lock file with the digests of each package."""
    command = create_command("download")
    options, _ = command.parse_args([])
    target = TargetPython(platforms=PLATFORMS, py_version_info=(3, 11), implementation="cp")
    lines = [line.removesuffix(" \\") for line in lock.read_text().splitlines() if "--hash=" not in line]
    text = []
    with command.main_context():
        finder = command._build_package_finder(options, command.get_default_session(options), target)
        for line in lines:
            pin = PIN.fullmatch(line)
            found = digests(finder, pin[1], pin[2]) if pin else []
            text.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n")
    return "".join(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        if UNHASHED not in file.read_text().splitlines():
            file.write_text(hashed(file))
