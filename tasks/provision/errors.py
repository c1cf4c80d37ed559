"""Errors of folders, processes and servers."""

from __future__ import annotations


class ProvisionError(RuntimeError):
    """A process or server could not be started or kept running.

    The message holds the end of its log.
    """


class PortTakenError(ProvisionError):
    """Another process took a server's port after it was found free and before the server's start."""


class RunsFolderError(ProvisionError):
    """The runs folder cannot be created or written to. The message names it and the fix."""


class PrivacyError(ProvisionError):
    """A file or folder is not private to this user. The message names it and the fix."""
