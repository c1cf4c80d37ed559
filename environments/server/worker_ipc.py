"""Requests between the worker processes of one server.

Every worker listens on a unix socket in a folder that only this user can access, and answers only
processes of this user. This is necessary because these requests bypass the token and the limits of
HTTP.

A frame is a length, a number that pairs the answer with its request, and msgpack. A request holds
(operation, calls, client). An answer holds what `Dispatcher` returned. A request of length 0
cancels the earlier one with its number. One connection per pair of workers carries many requests at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

log = logging.getLogger(__name__)

_HEAD = struct.Struct(">IQ")
_CREDENTIALS = struct.Struct("3i")
"""The kernel's record of the peer process: process id, user id, group id."""
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")
Serve = Callable[[str, list[tuple[Any, ...]], str], Awaitable[Any]]


class WorkerGoneError(Exception):
    """The other worker does not exist, or died while it performed the request."""


class _Link:
    """The connection to one peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.ensure_future(self._read(reader))

    @property
    def gone(self) -> bool:
        return self._reading.done()

    async def ask(self, body: bytes) -> bytes:
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(_HEAD.pack(len(body), number) + body)
            return await answer
        except asyncio.CancelledError:
            self._writer.write(_HEAD.pack(0, number))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                length, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                body = await reader.readexactly(length)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(body)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(WorkerGoneError())


class OtherWorkers:
    """Client of the other workers, whose sockets are in `folder`."""

    def __init__(self, folder: Path, worker: int, workers: int) -> None:
        self.workers = workers
        self._folder = folder
        self._worker = worker
        self._links: dict[int, _Link] = {}
        self._connecting = asyncio.Lock()

    async def ask(self, worker: int, operation: str, calls: Sequence[tuple[Any, ...]], kind: type[T], client: str = "") -> T:
        """Return `worker`'s answer to `client`'s calls, decoded as `kind`.

        Raises:
            WorkerGoneError: It does not exist, or died before it answered.
        """
        link = await self._link(worker)
        return msgspec.msgpack.decode(await link.ask(_encode((operation, calls, client))), type=kind)

    async def ask_all(self, operation: str, kind: Any) -> dict[int, Any]:
        """Return every other worker's answer by worker.

        Omit those without an answer within a second.
        """
        others = [worker for worker in range(self.workers) if worker != self._worker]
        asked = (asyncio.wait_for(self.ask(worker, operation, [], kind), 1.0) for worker in others)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {worker: answer for worker, answer in zip(others, answers, strict=True) if not isinstance(answer, BaseException)}

    async def _link(self, worker: int) -> _Link:
        link = self._links.get(worker)
        if link is not None and not link.gone:
            return link
        async with self._connecting:
            link = self._links.get(worker)
            if link is None or link.gone:
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                peer.setblocking(False)
                try:
                    await asyncio.get_running_loop().sock_connect(peer, str(self._folder / str(worker)))
                    link = _Link(*await asyncio.open_unix_connection(sock=peer))
                except OSError as refused:
                    peer.close()
                    raise WorkerGoneError from refused
                self._links[worker] = link
            return link


async def listen(folder: Path, worker: int, serve: Serve) -> asyncio.Server:
    """Answer the other workers with the results of `serve`."""

    async def answer_one(writer: asyncio.StreamWriter, number: int, body: bytes) -> None:
        operation, calls, client = msgspec.msgpack.decode(body, type=tuple[str, list[tuple[Any, ...]], str])
        answer = _encode(await serve(operation, calls, client))
        writer.write(_HEAD.pack(len(answer), number) + answer)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            if (user := _user_of(writer.get_extra_info("socket"))) != os.getuid():
                log.warning("a process of another user asked a worker", extra={"user": user})
                return
            while True:
                length, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                if not length:
                    if number in tasks:
                        tasks[number].cancel()
                    continue
                tasks[number] = asyncio.create_task(answer_one(writer, number, await reader.readexactly(length)))
                tasks[number].add_done_callback(partial(_forget, tasks, number))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for task in tasks.values():
                task.cancel()
            writer.close()

    path = folder / str(worker)
    with contextlib.suppress(FileNotFoundError):  # the socket of a predecessor
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(str(path))
    return await asyncio.start_unix_server(connected, sock=listener)


def _forget(tasks: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    del tasks[number]


def _user_of(connection: socket.socket) -> int:
    """Return the user id of the peer process."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
