"""One simulator process: a Java virtual machine that runs Simulator.java.

Requests and answers use its standard input and output. It exits when its standard input closes. The
operating system closes the pipe when this process ends for any reason.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
import weakref

from environments.sciworld.frames import (
    Answer,
    JavaMissingError,
    SimulatorError,
    SimulatorGoneError,
    decode_answer,
    frame,
)
from environments.sciworld.java import INSTALL, command, package_folder

START_S = 180.0
ANSWER_S = 60.0
EXPERT_S = 600.0
END_S = 5.0


class Simulator:
    """A process that hosts many sessions and performs one request at a time.

    Requests may come from any thread.

    Attributes:
        gone: Whether the process has ended.
        sessions: Number of sessions that use the process. Maintained by the pool.
        episodes: Number of episodes started in the process. Maintained by the pool.
    """

    def __init__(self) -> None:
        """Start the process without waiting until it is ready.

        Raises:
            JavaMissingError: Java is not installed. The message gives the install command.
            SimulatorError: The scienceworld package is missing, or its version does not match the
                task indices.
        """
        java = command()
        self.gone = False
        self.sessions = 0
        self.episodes = 0
        self._lock = threading.Lock()
        self._ready = False
        self._buffer = bytearray()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            java,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=package_folder(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        self._arrival = select.poll()
        self._arrival.register(self._out, select.POLLIN)
        self._finish = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ready(self) -> bool:
        """Return whether the process can answer without a start-up delay."""
        return self._ready or bool(self._arrival.poll(0))

    def ask(self, operation: str, *arguments: int | str, deadline_s: float = ANSWER_S) -> Answer:
        """Send a request and wait for the answer. `Simulator.java` lists the operations.

        Args:
            deadline_s: Timeout in seconds.

        Raises:
            SimulatorGoneError: The process ended before it answered, or did not answer within
                `deadline_s`.
            RefusedRequestError: The simulator failed on this request. The message is Java's.
            JavaMissingError: The installed Java cannot run the simulator.
        """
        request = frame(operation, arguments)
        with self._lock:
            return decode_answer(self._exchange(request, deadline_s))

    def tell(self, operation: str, *arguments: int | str) -> None:
        """Send a request and discard the answer. See `ask`."""
        with contextlib.suppress(SimulatorGoneError):
            self.ask(operation, *arguments)

    def end(self) -> None:
        """End the process. A second call does nothing."""
        self.gone = True
        self._process.kill()  # a request under way fails at once
        with self._lock:
            self._close()

    def _exchange(self, frame: bytes, deadline_s: float) -> bytes:
        if self.gone:
            raise SimulatorGoneError("the simulator's process has ended")
        try:
            if not self._ready:
                self._receive(START_S)
                self._ready = True
            self._send(frame)
            return self._receive(deadline_s)
        except BaseException:  # an interrupted exchange leaves the stream out of sync
            self._close()
            raise

    def _send(self, frame: bytes) -> None:
        try:
            while frame:
                frame = frame[os.write(self._in, frame) :]
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self, deadline_s: float) -> bytes:
        deadline = time.monotonic() + deadline_s
        while (content := self._whole()) is None:
            if not self._arrival.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise SimulatorGoneError(
                    f"the simulator did not answer within {deadline_s:g} s and was killed"
                )
            part = os.read(self._out, 65536)
            if not part:
                raise self._ended()
            self._buffer += part
        return content

    def _whole(self) -> bytes | None:
        """Remove and return a complete answer from the buffer. None if there is none."""
        if len(self._buffer) < 4:
            return None
        size = 4 + struct.unpack_from(">i", self._buffer)[0]
        if len(self._buffer) < size:
            return None
        content = bytes(self._buffer[4:size])
        del self._buffer[:size]
        return content

    def _ended(self) -> SimulatorError:
        """Kill the process and return an error that describes how it ended."""
        self._process.kill()
        status = self._process.wait()
        self._stderr.seek(0)
        output = self._stderr.read(4096).decode(errors="replace").strip()
        if self._ready:
            return SimulatorGoneError(
                f"the simulator's process ended with status {status}: {output}"
            )
        return JavaMissingError(
            f"the simulator did not start (status {status}: {output}). It needs Java 11 or later "
            f"with its compiler. Run: {INSTALL}"
        )

    def _close(self) -> None:
        self.gone = True
        self._finish()
        self._stderr.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # On timeout the process is dying anyway. The standard library reaps it later.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
