"""Exit of a command's process."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from flows.signals import INTERRUPTED


def exit_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a main function and exit with its status, without unloading Python's modules.

    Unloading torch and vLLM takes seconds, and triton reports its functions as leaks meanwhile. Exit
    handlers run. An unexpected error ends the process as usual, with its traceback. Ctrl-C does not
    wait for threads, such as one that waits for the start of a server.

    Args:
        main: Returns the exit status (None: 0), or raises SystemExit.
    """
    status: object
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:  # before or after `run_command`
        print("\nStopped.", file=sys.stderr)
        status = INTERRUPTED
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status or 0)
