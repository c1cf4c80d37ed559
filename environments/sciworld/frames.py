"""Binary frames exchanged with a simulator process, and the errors of its answers.

A frame is its length followed by its content. Numbers and strings use the format of Java's
DataInputStream.
"""

from __future__ import annotations

import struct

from environments.environment import WorldError


class SimulatorError(WorldError):
    """The simulator failed. The failure is not the agent's fault."""


class JavaMissingError(SimulatorError):
    """Java is missing on this machine, or its version cannot run the simulator."""


class SimulatorGoneError(SimulatorError):
    """The process ended, or was killed after a timeout.

    Its sessions can be rebuilt in another process.
    """


class RefusedRequestError(SimulatorError):
    """The simulator failed on a request, but its process continues.

    A retry of the request would fail in the same way.
    """


class Answer:
    """An answer of the simulator. Values must be read in the order in which they were written."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def flag(self) -> bool:
        """Read a boolean."""
        return bool(self._take(">?"))

    def integer(self) -> int:
        """Read a 32-bit integer."""
        return int(self._take(">i"))

    def real(self) -> float:
        """Read a double."""
        return float(self._take(">d"))

    def text(self) -> str:
        """Read a string."""
        start = self._at + 4
        self._at = start + self.integer()
        return self._content[start : self._at].decode()

    def _take(self, form: str) -> float:
        value: float = struct.unpack_from(form, self._content, self._at)[0]
        self._at += struct.calcsize(form)
        return value


def frame(operation: str, arguments: tuple[int | str, ...]) -> bytes:
    """Encode a request. `Simulator.java` lists the operations."""
    parts = [operation.encode("utf-16-be")]
    for argument in arguments:
        if isinstance(argument, str):
            # A lone surrogate cannot be encoded and becomes "?".
            text = argument.encode(errors="replace")
            parts += (struct.pack(">i", len(text)), text)
        else:
            parts.append(struct.pack(">i", argument))
    content = b"".join(parts)
    return struct.pack(">i", len(content)) + content


def decode_answer(content: bytes) -> Answer:
    """Decode the content of an answer frame.

    Raises:
        RefusedRequestError: The simulator failed on the request. The message is Java's.
    """
    answer = Answer(content)
    if not answer.flag():
        raise RefusedRequestError(answer.text())
    return answer
