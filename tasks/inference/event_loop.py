"""The asyncio event loop of this process, in its own thread, for engines and episodes.

Environments and vLLM servers keep working while the main thread updates the policy. Connections
live as long as the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop. Its thread starts at the first call and ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="event loop", daemon=True).start()
    return loop


def in_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop from any other thread and wait for its result.

    An interrupt of the caller cancels the coroutine.
    """
    running = asyncio.run_coroutine_threadsafe(work, event_loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise
