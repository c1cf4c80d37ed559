"""A parser for the command lines of the flows."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Arguments(argparse.ArgumentParser):
    """A parser that says first what is wrong, and then how the command is used."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str) -> None:
        """
        Args:
            prog: The command, e.g. "python -m flows.plan".
            usage: What follows it.
            description: What it does, in a sentence.
            epilog: Examples and notes, printed as they are.
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
        """Ends the process with status 2."""
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")
