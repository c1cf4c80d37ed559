"""The one asyncio event loop of this process, in a thread of its own: engines generate and episodes are played in it.

So environments and vLLM servers go on working while the main thread updates the policy, and connections live as long as the process.
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
    """The loop; its thread starts at the first call and ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="event loop", daemon=True).start()
    return loop


def in_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the event loop and waits for its result, from any other thread; whoever is interrupted cancels it."""
    running = asyncio.run_coroutine_threadsafe(work, event_loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise
