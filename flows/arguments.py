"""A parser for the command lines of the flows."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Arguments(argparse.ArgumentParser):
    """A parser that prints the error before the usage."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str) -> None:
        """
        Args:
            prog: The command, e.g. "agentgym plan".
            usage: The arguments after the command.
            description: What the command does, in a sentence.
            epilog: Examples and notes, printed verbatim.
        """
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print the message and the usage, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")
