"""Starts the process that removes the containers of this process once this process has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import tasks

_lock = threading.Lock()
_watch: subprocess.Popen[bytes] | None = None


def start_watch(owner: str) -> None:
    """Start the watching process of this process, once.

    Args:
        owner: Label of this process's containers.
    """
    global _watch
    with _lock:
        if _watch is None or _watch.poll() is not None:
            root = str(Path(tasks.__file__).parent.parent)
            _watch = subprocess.Popen(
                [sys.executable, "-m", "tasks.provision.container_watcher", owner],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
                start_new_session=True,
            )
