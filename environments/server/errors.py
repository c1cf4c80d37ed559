"""The error of a rejected request or item."""

from __future__ import annotations

from environments.environment import WorldError
from environments.protocol import Error


class RequestError(Exception):
    """A request or item is rejected, with a status and an error."""

    def __init__(self, status: int, type: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(type=type, message=message, field=field)


def world_failed(fault: Exception) -> RequestError:
    """Return the error for an exception raised by the world."""
    # A world raises WorldError for errors that are not its bugs, e.g. a dead helper process.
    if isinstance(fault, WorldError):
        why = "the world failed"
    else:
        why = "the world failed, which is a bug in it"
    return RequestError(500, "world_fault", f"{why}: {type(fault).__name__}: {fault}"[:500])
