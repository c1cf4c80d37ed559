"""One simulator process: a Java virtual machine that runs Simulator.java.

Requests and answers use its standard input and output. It exits when its standard input closes. The
operating system closes the pipe when this process ends for any reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

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
CHECK_S = 1.0
"""Seconds between two deadline checks of an event loop."""
AHEAD = 4
"""Maximum number of requests in the pipe, so that the simulator need not wait for the event loop. They
fit the pipe's buffer, so writes never block.
"""


class Simulator:
    """A process that hosts many sessions and performs one request at a time.

    Requests may come from any thread. After the first call of `ask_awaited`, its event loop handles
    all
    requests. Waiting then blocks no thread and wakes none.

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._deadline = 0.0
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
            loop = self._loop
            if loop is None:
                return decode_answer(self._exchange(request, deadline_s))
        return decode_answer(
            asyncio.run_coroutine_threadsafe(self._queue(request, deadline_s), loop).result()
        )

    async def ask_awaited(
        self, operation: str, *arguments: int | str, deadline_s: float = ANSWER_S
    ) -> Answer:
        """Send a request and await the answer on the running event loop. See `ask`."""
        return decode_answer(await self._queue(frame(operation, arguments), deadline_s))

    def tell(self, operation: str, *arguments: int | str) -> None:
        """Send a request and discard the answer. See `ask`.

        The call does not block once an event loop handles the requests.
        """
        loop = self._loop
        if loop is None:
            with contextlib.suppress(SimulatorGoneError):
                self.ask(operation, *arguments)
        elif not loop.is_closed():
            request = _Request(frame(operation, arguments), ANSWER_S, loop.create_future())
            # Retrieve the error of the discarded answer, so that asyncio does not report it.
            request.answer.add_done_callback(
                lambda answer: answer.cancelled() or answer.exception()
            )
            loop.call_soon_threadsafe(self._enqueue, request)

    def end(self) -> None:
        """End the process. A second call does nothing."""
        self.gone = True
        loop = self._loop
        if loop is None or loop.is_closed():
            with self._lock:
                self._close()
        else:
            loop.call_soon_threadsafe(
                self._fail, SimulatorGoneError("the simulator's process was stopped")
            )

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

    async def _queue(self, frame: bytes, deadline_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        request = _Request(frame, deadline_s, loop.create_future())
        if self._loop is None:
            self._attach(loop)
        self._enqueue(request)
        return await request.answer

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loop = loop
            if self.gone:
                return
            # The first frame that arrives signals readiness.
            if not self._ready:
                self._sent.append(_Request(b"", START_S, loop.create_future()))
                self._deadline = loop.time() + START_S
            loop.add_reader(self._out, self._arrived)
            loop.call_later(CHECK_S, self._check_deadline)

    def _enqueue(self, request: _Request) -> None:
        if self.gone:
            request.answer.set_exception(SimulatorGoneError("the simulator's process has ended"))
            return
        self._waiting.append(request)
        self._send_waiting()

    def _send_waiting(self) -> None:
        assert self._loop is not None
        while self._waiting and len(self._sent) < AHEAD:
            request = self._waiting.popleft()
            if not self._sent:
                self._deadline = self._loop.time() + request.deadline_s
            self._sent.append(request)
            try:
                self._send(request.frame)
            except SimulatorError as ended:
                self._fail(ended)

    def _arrived(self) -> None:
        assert self._loop is not None
        if not (part := os.read(self._out, 65536)):
            self._fail(self._ended())
            return
        self._buffer += part
        while (content := self._whole()) is not None:
            self._ready = True
            request = self._sent.popleft()
            if not request.answer.done():
                request.answer.set_result(content)
            if self._sent:
                self._deadline = self._loop.time() + self._sent[0].deadline_s
        self._send_waiting()

    def _check_deadline(self) -> None:
        assert self._loop is not None
        if self.gone:
            return
        if self._sent and self._loop.time() >= self._deadline:
            self._fail(
                SimulatorGoneError(
                    f"the simulator did not answer within {self._sent[0].deadline_s:g} s and was "
                    "killed"
                )
            )
            return
        self._loop.call_later(CHECK_S, self._check_deadline)

    def _fail(self, fault: SimulatorError) -> None:
        assert self._loop is not None
        self.gone = True
        if self._stderr.closed:
            return
        self._loop.remove_reader(self._out)
        self._close()
        failing = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for request in failing:
            if not request.answer.done():
                request.answer.set_exception(type(fault)(*fault.args))
                # Mark the error as retrieved: the start-up frame and cancelled requests have no
                # awaiting caller.
                request.answer.exception()

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


@dataclass(slots=True)
class _Request:
    """A request of an event loop, and the future of the answer's content."""

    frame: bytes
    deadline_s: float
    answer: asyncio.Future[bytes]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # On timeout the process is dying anyway. The standard library reaps it later.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
