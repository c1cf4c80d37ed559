"""Kill all processes that a pytest run left behind, even if pytest itself was killed.

    python tests/support/reaper.py PID_OF_PYTEST SUITE_FOLDER

Every process that a test starts inherits SUITE_FOLDER. tests/conftest.py starts this program, which
needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

CHECK_S = 0.2


def main(owner: int, folder: str) -> None:
    """Wait until pytest has ended, then kill its processes until none is left."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while os.getppid() == owner:
        time.sleep(CHECK_S)
    while left := of_suite(folder):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def of_suite(folder: str) -> list[int]:
    """Return the ids of the running processes of a pytest run, without this process."""
    mark, found = f"SUITE_FOLDER={folder}".encode(), []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            with suppress(OSError):  # it has ended or belongs to another user
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
