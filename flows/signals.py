"""Make SIGTERM end a command as Ctrl-C does: finished work is kept, started processes are ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
LONGEST_END_S = 20.0
"""Seconds that a command has to end after a signal; then it exits at once.

This happens, for example, if its Prefect server no longer answers.
"""


class Terminated(SystemExit):
    """Raised on SIGTERM. If not caught, it ends the process with the shell's status for SIGTERM."""


def exit_on_sigterm() -> None:
    """Make SIGTERM raise `Terminated` in the main thread instead of ending the process at once.

    After SIGTERM or Ctrl-C the process has `LONGEST_END_S` seconds to end. Call this in the main
    thread.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    # Not in the handler, because Prefect installs its own while a flow runs. Python writes every
    # signal to this descriptor.
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_limit_shutdown, args=(read,), name="end-limit", daemon=True).start()


def _limit_shutdown(signals: socket.socket) -> None:
    while (number := signals.recv(1)[0]) not in (signal.SIGTERM, signal.SIGINT):
        pass
    time.sleep(LONGEST_END_S)
    print(
        f"\nThe process did not end within {LONGEST_END_S:g} s after the signal and was killed.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(128 + number)
