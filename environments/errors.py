"""What a call to an environment server can raise, and the error that each HTTP status stands for."""

from __future__ import annotations


class EnvironmentCallError(Exception):
    """Base of what a call can raise: the environment could not be played, which says nothing about the policy."""


class UnreachableError(EnvironmentCallError):
    """No server answered before the deadline.

    Attributes:
        sent: Whether the request may have reached a server all the same.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceededError(EnvironmentCallError):
    """A server took the request and did not answer before the deadline."""


class SessionLostError(EnvironmentCallError):
    """The server does not have the session (any more): its lease ran out, or the server was restarted. Start another."""


class ServerFailedError(EnvironmentCallError):
    """The server or the world failed, or answered what makes no sense: a bug there."""


class DamagedAnswerError(ServerFailedError):
    """An answer is unreadable or incomplete, or names another session or turn than was asked. Asking again is safe."""


class RefusedError(EnvironmentCallError):
    """The server understood and refused: a wrong task index, a wrong turn, an action after the episode's end. A bug here."""


class WrongWorldError(EnvironmentCallError):
    """A server hosts another world, or another version of it, than is to be played. Trying again is no use: someone must mend it."""


class BusyError(EnvironmentCallError):
    """The servers had no session to spare until the deadline."""


def error_of_status(status: int, text: str, *, of_session: bool = False) -> EnvironmentCallError:
    """The fault that an HTTP status stands for; 404 and 410 speak of the session only where the answer says so."""
    if status in (429, 503):
        return BusyError(text)
    if status in (502, 504):  # a proxy speaks for a server that is not there
        return UnreachableError(text)
    if of_session and status in (404, 410):
        return SessionLostError(text)
    return RefusedError(text) if 400 <= status < 500 else ServerFailedError(text)
