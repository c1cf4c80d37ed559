"""Errors of folders, processes and servers."""

from __future__ import annotations


class ProvisionError(RuntimeError):
    """A process or server could not be started or kept running.

    The message holds the end of its log.
    """


class LifecycleError(ProvisionError):
    """A process or server was used before its start or after its end."""


class StartFailedError(ProvisionError):
    """A process or server ended before it was ready.

    Attributes:
        status: Its exit status. None if unknown.
    """

    status: int | None = None


class StartTimeoutError(ProvisionError):
    """A process or server was not ready before its deadline."""


class RestartBudgetError(ProvisionError):
    """A replica died after the last permitted restart."""


class PortTakenError(ProvisionError):
    """Another process took a server's port after it was found free and before the server's start."""


class RunsFolderError(ProvisionError):
    """The runs folder cannot be created or written to, or was moved.

    The message names it and the fix.
    """


class PrivacyError(ProvisionError):
    """A file or folder is not private to this user. The message names it and the fix."""
