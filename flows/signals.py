"""SIGTERM ends a command as Ctrl-C does: what is finished is kept, what was started is ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def sigterm_interrupts_event_loop() -> Iterator[None]:
    """Lets SIGTERM end an `asyncio.run` in the block as Ctrl-C does; afterwards whoever handled SIGTERM before hears of it.

    Prefect's handler raises where the process happens to be: inside an episode's coroutine that is one more fault of that episode,
    and the collection goes on. `asyncio.run` takes SIGINT to cancel the whole instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
