"""Requests to servers of one world: which one is asked, how often, and what its answers mean."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from environments.address import present_url
from environments.errors import (
    BusyError,
    DeadlineExceededError,
    EnvironmentCallError,
    ServerFailedError,
    UnreachableError,
    error_of_status,
)
from environments.http import FIRST_PAUSE_S, HttpClient, pause
from environments.protocol import Error, Replies, Reply
from environments.request_batcher import RequestBatcher

T = TypeVar("T")

AVOID_S = 2.0
"""A replica that did not answer gets no new session for this long, if another can take it."""


@dataclass(eq=False)
class Replica:
    """One server of several that are alike.

    Attributes:
        address: Its URL, or the file that holds it; see `present_url`.
        url: Its base URL, as it was last known.
        sessions: Ours on it.
        room: About how many sessions of ours it could hold beside those of others; infinite before it has said so.
        avoided_until: When it may get new sessions again (time.monotonic()).
        batcher: Where calls share requests, once it has said that it answers promptly.
    """

    address: str
    url: str
    sessions: int = 0
    room: float = math.inf
    avoided_until: float = 0.0
    batcher: RequestBatcher | None = None

    def avoid(self) -> None:
        """Gives it no new session for a while, and looks whether it has moved."""
        self.avoided_until = time.monotonic() + AVOID_S
        self.url = present_url(self.address, self.url)


class Calls:
    """The replicas and the connections to them, from `open` to `close`."""

    def __init__(self, urls: Sequence[str], deadline_s: float, connections: int) -> None:
        """
        Args:
            urls: Addresses of the replicas.
            deadline_s: Seconds that a call may take with all its retries, unless it says otherwise.
            connections: Requests in flight at once.
        """
        self.replicas = [Replica(url, present_url(url)) for url in urls]
        self._deadline_s = deadline_s
        self._connections = connections
        self._http: HttpClient | None = None

    def open(self) -> None:
        """Binds the connections to the running event loop."""
        self._http = HttpClient(self._connections)

    async def close(self) -> None:
        """Ends the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def roomiest(self) -> Replica:
        """The replica with the most room left for sessions of ours, of those that have answered lately."""
        now = time.monotonic()
        return min(self.replicas, key=lambda replica: (replica.avoided_until > now, replica.sessions - replica.room, replica.sessions))

    async def perform(self, choose: Callable[[], Replica], operation: str, item: msgspec.Struct, deadline_s: float | None) -> Reply:
        """Asks the replica that `choose` names for one operation until an answer comes, or the deadline.

        Raises:
            EnvironmentCallError: What came of it.
        """
        deadline = time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)
        pause_s = FIRST_PAUSE_S
        while True:
            replica = choose()
            try:
                if replica.batcher is None:
                    [reply] = await self.ask(replica, operation, [item], deadline)
                else:
                    reply = await replica.batcher.ask(operation, item, deadline)
                if reply.status != 200:
                    raise _error(reply.status, reply.error, f"{replica.url}/v1/{operation}", of_session=True)
                return reply
            except (UnreachableError, BusyError) as fault:
                replica.avoid()
                pause_s = await pause(pause_s, deadline, fault)
            except DeadlineExceededError:
                replica.avoid()
                raise

    async def ask(self, replica: Replica, operation: str, items: Sequence[msgspec.Struct], deadline: float) -> list[Reply]:
        """One reply per item, asked for once; `deadline` is a time of time.monotonic().

        Raises:
            EnvironmentCallError: The request failed as a whole.
        """
        url = f"{replica.url}/v1/{operation}"
        status, body = await self._exchange("POST", url, deadline, _encode({"items": items}))
        try:
            replies = msgspec.json.decode(body, type=Replies)
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            replies = Replies(error=Error("unreadable", f"an answer that is not of our dialect: {body[:200]!r} ({unreadable})"))
            status = 500 if status == 200 else status
        if not replies.items and items:
            raise _error(status, replies.error, url)
        if len(replies.items) != len(items):
            raise ServerFailedError(f"{url} answered {len(replies.items)} items to {len(items)}")
        return replies.items

    async def read(self, replica: Replica, path: str, kind: type[T]) -> T:
        """A page as `kind`, asked for until an answer comes, or the deadline.

        Raises:
            EnvironmentCallError: None came, or one that makes no sense.
        """
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self.read_once(replica, path, kind, deadline)
            except (UnreachableError, BusyError) as fault:
                replica.avoid()
                pause_s = await pause(pause_s, deadline, fault)

    async def read_once(self, replica: Replica, path: str, kind: type[T], deadline: float) -> T:
        """A page as `kind`, asked for once.

        Raises:
            EnvironmentCallError: There is none, or it makes no sense.
        """
        status, body = await self._exchange("GET", replica.url + path, deadline)
        if status != 200:
            raise _error(status, None, replica.url + path, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            raise ServerFailedError(f"{replica.url}{path} answered something unexpected: {unreadable}") from unreadable

    async def _exchange(self, method: str, url: str, deadline: float, body: bytes | None = None) -> tuple[int, bytes]:
        if self._http is None:
            raise RuntimeError("use the client as a context manager: async with EnvironmentClient(...) as client")
        return await self._http.exchange(method, url, deadline, body)


def _encode(content: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot carry: the action is sent with "?" in its place
        for item in content["items"]:
            item.action = item.action.encode("utf-8", "replace").decode()
        return msgspec.json.encode(content)


def _error(status: int, error: Error | None, url: str, body: bytes = b"", *, of_session: bool = False) -> EnvironmentCallError:
    why = f" {error.type}: {error.message}" if error else f" {body[:200]!r}" if body else ""
    return error_of_status(status, f"{url}: {status}{why}", of_session=of_session)
