"""What goes wrong with folders, processes and servers."""

from __future__ import annotations


class ProvisionError(RuntimeError):
    """A process or server could not be started or kept running; the message holds the end of its log."""


class PortTakenError(ProvisionError):
    """Another process took a server's port between our look at it and the server's."""


class RunsFolderError(ProvisionError):
    """The folder of the runs cannot be made or written to: the message names it and says what to do."""


class PrivacyError(ProvisionError):
    """What should be this user's alone is not: the message names it and says what to do."""
