"""Errors of folders, processes and servers. Their messages name the fix, or end with the log."""

from __future__ import annotations


class ProvisionError(RuntimeError):
    """A process or server could not be started or kept running."""


class LifecycleError(ProvisionError):
    """A process or server was used before its start or after its end."""


class StartFailedError(ProvisionError):
    """A process or server ended before it was ready, with this exit status (None: unknown)."""

    status: int | None = None


class StartTimeoutError(ProvisionError):
    """A process or server was not ready before its deadline."""


class RestartBudgetError(ProvisionError):
    """A replica died after the last permitted restart."""


class PortTakenError(ProvisionError):
    """Another process took a server's port between the check of the port and the server's start."""


class RunsFolderError(ProvisionError):
    """The runs folder cannot be created or written to, or was moved."""


class PrivacyError(ProvisionError):
    """A file or folder is not private to this user."""
