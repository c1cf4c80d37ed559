"""What goes to a simulator process and comes back: frames of bytes, and what can be wrong with an answer.

A frame is its length and its content; numbers and texts are laid out as Java's DataInputStream reads them.
"""

from __future__ import annotations

import struct

from environments.environment import WorldError


class SimulatorError(WorldError):
    """The simulator failed, which says nothing about the agent."""


class JavaMissingError(SimulatorError):
    """There is no Java on this machine, or none that can run the simulator."""


class SimulatorGoneError(SimulatorError):
    """The process ended, or gave no answer in time and was ended; its sessions can be built again in another."""


class RefusedRequestError(SimulatorError):
    """The simulator broke over a request; the process goes on. The same request would break it again."""


class Answer:
    """What the simulator answered; the results are taken out one after another."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def flag(self) -> bool:
        """A truth value."""
        return bool(self._take(">?"))

    def integer(self) -> int:
        """A 32-bit integer."""
        return int(self._take(">i"))

    def real(self) -> float:
        """A double."""
        return float(self._take(">d"))

    def text(self) -> str:
        """A string."""
        start = self._at + 4
        self._at = start + self.integer()
        return self._content[start : self._at].decode()

    def _take(self, form: str) -> float:
        value: float = struct.unpack_from(form, self._content, self._at)[0]
        self._at += struct.calcsize(form)
        return value


def frame(operation: str, arguments: tuple[int | str, ...]) -> bytes:
    """A request; `Simulator.java` says which operations there are."""
    parts = [operation.encode("utf-16-be")]
    for argument in arguments:
        if isinstance(argument, str):
            text = argument.encode(errors="replace")  # a lone surrogate cannot travel; it becomes "?"
            parts += (struct.pack(">i", len(text)), text)
        else:
            parts.append(struct.pack(">i", argument))
    content = b"".join(parts)
    return struct.pack(">i", len(content)) + content


def served(content: bytes) -> Answer:
    """The answer that the content of a frame holds.

    Raises:
        RefusedRequestError: The simulator broke over the request; the message is Java's.
    """
    answer = Answer(content)
    if not answer.flag():
        raise RefusedRequestError(answer.text())
    return answer
