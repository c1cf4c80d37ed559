"""Errors of the trainer's ranks without a connection to the flow: all but rank 0.

When such a rank fails, rank 0 only sees that a connection was closed. So the rank writes its error
to a file in the run's folder.
"""

from __future__ import annotations

from pathlib import Path

PEER_ERRORS = {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError"}
"""Errors of torch on a rank that lost the connection to another one."""
FILE = "rank-error.txt"


def note_error(folder: Path, rank: int, kind: str, message: str) -> None:
    """Record the error of a rank in the run's folder, unless it follows from another rank's."""
    if kind not in PEER_ERRORS:
        (folder / FILE).write_text(f"rank {rank}: {kind}: {message}", encoding="utf-8")


def noted_error(folder: Path) -> str:
    """Return the recorded error. Empty if there is none."""
    try:
        return (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def clear_error(folder: Path) -> None:
    """Delete the error of an earlier trainer."""
    (folder / FILE).unlink(missing_ok=True)
