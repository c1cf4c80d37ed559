"""SIGTERM ends a command as Ctrl-C does: what is finished is kept, what was started is ended."""

from __future__ import annotations

import signal
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT


class Terminated(SystemExit):
    """SIGTERM came. Not caught, it ends the process with the status that shells give for that."""


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises `Terminated` in the main thread, where by default it would end the process on the spot."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
