"""A process that outlives its owner to remove the owner's containers, however the owner ended.

    python -m tasks.provision.container_watcher OWNER

Its standard input is a pipe whose other end only the owner holds. When the pipe closes, the owner
is gone.
"""

from __future__ import annotations

import sys


def main(owner: str) -> None:
    """Wait for the owner's end, then remove its containers."""
    sys.stdin.buffer.read()
    from tasks.provision.containers import connect, remove_owned

    remove_owned(connect(), owner)


if __name__ == "__main__":
    main(sys.argv[1])
