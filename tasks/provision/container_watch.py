"""A process that outlives its owner to remove the owner's containers, however the owner ended.

    python -m tasks.provision.container_watch OWNER

Its standard input is a pipe whose other end only the owner holds. When the pipe closes, the owner
is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import tasks

_lock = threading.Lock()
_watch: subprocess.Popen[bytes] | None = None


def watch_over(owner: str) -> None:
    """Start the watching process of this process, once.

    Args:
        owner: Label of this process's containers.
    """
    global _watch
    with _lock:
        if _watch is None or _watch.poll() is not None:
            root = str(Path(tasks.__file__).parent.parent)
            _watch = subprocess.Popen(
                [sys.executable, "-m", "tasks.provision.container_watch", owner],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
                start_new_session=True,
            )


def main(owner: str) -> None:
    """Wait for the owner's end, then remove its containers."""
    sys.stdin.buffer.read()
    from tasks.provision.containers import connect, remove_owned

    remove_owned(connect(), owner)


if __name__ == "__main__":
    main(sys.argv[1])
