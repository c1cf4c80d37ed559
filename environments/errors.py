"""Errors of calls to environment servers, and the error for each HTTP status."""

from __future__ import annotations


class EnvironmentCallError(Exception):
    """Base class of the errors of a call.

    The environment could not be played, which implies nothing about the policy.

    Attributes:
        code: The server's name of the error, e.g. "no_such_task". Empty if it sent none.
        field: The invalid field of the request or the recipe, or environment variable. Empty if
            none is invalid.
        reason: The server's explanation. Empty if it sent none.
    """

    code: str = ""
    field: str = ""
    reason: str = ""


class UnreachableError(EnvironmentCallError):
    """No server answered before the deadline.

    Attributes:
        sent: Whether the request may still have reached a server.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceededError(EnvironmentCallError):
    """A server accepted the request but did not answer before the deadline."""


class SessionLostError(EnvironmentCallError):
    """The session does not exist (any more): its lease ran out, or the server restarted.

    Start another session.
    """


class ServerFailedError(EnvironmentCallError):
    """The server or the world failed or sent an invalid answer: a bug on the server's side."""


class DamagedAnswerError(ServerFailedError):
    """An answer is unreadable or incomplete, or names another session or turn.

    Repeating the request is safe.
    """


class RefusedError(EnvironmentCallError):
    """The server rejected the request: a bug on the client's side.

    Examples: a wrong task index, a wrong turn, an action after the episode's end.
    """


class WrongWorldError(EnvironmentCallError):
    """A server hosts another world or version than the expected one.

    Retries do not help. The configuration must be fixed.

    Attributes:
        url: The server. Empty if it is not a single one.
        hosted: The world, or the rules, of the server.
        expected: The world, or the rules, that the caller expects.
    """

    def __init__(
        self, message: str, *, field: str = "", url: str = "", hosted: str = "", expected: str = ""
    ) -> None:
        super().__init__(message)
        self.field, self.url, self.hosted, self.expected = field, url, hosted, expected


FULL = frozenset({"session_limit", "world_busy"})
"""Codes of a server all of whose sessions are in use."""


class BusyError(EnvironmentCallError):
    """The servers had no free session until the deadline."""


def error_of_status(status: int, text: str, *, of_session: bool = False) -> EnvironmentCallError:
    """Return the error for an HTTP status.

    Args:
        status: The HTTP status.
        of_session: Whether the request concerns a session. Only then do 404 and 410 mean that the
            session is lost.
    """
    if status in (429, 503):
        return BusyError(text)
    if status in (502, 504):  # a proxy answers for an unreachable server
        return UnreachableError(text)
    if of_session and status in (404, 410):
        return SessionLostError(text)
    return RefusedError(text) if 400 <= status < 500 else ServerFailedError(text)
