"""SIGTERM ends a command as Ctrl-C does: what is finished is kept, what was started is ended."""

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
"""A command that has not ended so long after a signal is ended on the spot, e.g. because its Prefect server does not answer any more."""


class Terminated(SystemExit):
    """SIGTERM came. Not caught, it ends the process with the status that shells give for that."""


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises `Terminated` in the main thread, where by default it would end the process on the spot.

    The end that SIGTERM or Ctrl-C begins takes at most `LONGEST_END_S`. Call it in the main thread.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    # Not in the handler: Prefect has a handler of its own while a flow runs. Python writes every signal to this descriptor.
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_limit_the_end, args=(read,), name="end-limit", daemon=True).start()


def _limit_the_end(signals: socket.socket) -> None:
    while (number := signals.recv(1)[0]) not in (signal.SIGTERM, signal.SIGINT):
        pass
    time.sleep(LONGEST_END_S)
    print(f"\nThe process did not end within {LONGEST_END_S:g} s of the signal, and was ended.", file=sys.stderr, flush=True)
    os._exit(128 + number)
