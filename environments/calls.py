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
    DamagedAnswerError,
    DeadlineExceededError,
    EnvironmentCallError,
    UnreachableError,
    error_of_status,
)
from environments.http import FIRST_PAUSE_S, HttpClient, pause
from environments.protocol import Error, Replies, Reply
from environments.request_batcher import RequestBatcher

T = TypeVar("T")

PAGE_ATTEMPTS = 6
"""A page that is unreadable this often is not of our dialect."""
ATTEMPT_S = 20.0
"""A call without an answer for this long is asked again. A server that is still at work on it answers the repeated call."""
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
    close_failed: bool = False
    """Whether a session could not be closed. It is reported once."""

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

    async def perform(
        self,
        choose: Callable[[], Replica],
        operation: str,
        item: msgspec.Struct,
        deadline_s: float | None,
        complete: Callable[[Reply], bool] = lambda _: True,
    ) -> Reply:
        """Asks for one operation until a valid answer comes, or the deadline. A lost or damaged answer is asked for again.

        Args:
            choose: Names the replica of each attempt.
            operation: One of the protocol's operations.
            item: What is asked.
            deadline_s: Seconds for all attempts; None means the default.
            complete: Whether a successful reply has all that the operation answers.

        Raises:
            EnvironmentCallError: The fault of the last attempt, or the server's refusal.
        """
        deadline = time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)
        pause_s = FIRST_PAUSE_S
        while True:
            replica, attempt = choose(), min(deadline, time.monotonic() + ATTEMPT_S)
            try:
                if replica.batcher is None:
                    [reply] = await self.ask(replica, operation, [item], attempt)
                else:
                    reply = await replica.batcher.ask(operation, item, attempt)
                if not reply.answers(item) or (reply.status == 200 and not complete(reply)):
                    raise DamagedAnswerError(f"{replica.url}/v1/{operation} did not answer {_brief(item)}, but sent {_brief(reply)}")
                if reply.status != 200:
                    raise _error(reply.status, reply.error, f"{replica.url}/v1/{operation}", of_session=True)
                return reply
            except (UnreachableError, BusyError, DamagedAnswerError) as fault:
                replica.avoid()
                pause_s = await pause(pause_s, deadline, fault)
            except DeadlineExceededError:
                replica.avoid()
                if attempt == deadline:
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
            if status == 200:
                raise DamagedAnswerError(f"{url} sent an unreadable answer: {body[:200]!r} ({unreadable})") from unreadable
            raise _error(status, None, url, body) from unreadable
        if status != 200 and not replies.items:
            raise _error(status, replies.error, url, body)
        if len(replies.items) != len(items):
            raise DamagedAnswerError(f"{url} answered {len(replies.items)} items to {len(items)}")
        return replies.items

    async def read(self, replica: Replica, path: str, kind: type[T]) -> T:
        """A page as `kind`, asked for until an answer comes, or the deadline.

        Raises:
            EnvironmentCallError: None came, or one that makes no sense.
        """
        deadline = time.monotonic() + self._deadline_s
        pause_s, damaged = FIRST_PAUSE_S, 0
        while True:
            try:
                return await self.read_once(replica, path, kind, deadline)
            except (UnreachableError, BusyError) as fault:
                replica.avoid()
                pause_s = await pause(pause_s, deadline, fault)
            except DamagedAnswerError as fault:
                damaged += 1
                if damaged == PAGE_ATTEMPTS:
                    raise
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
            raise DamagedAnswerError(f"{replica.url}{path} sent an unreadable page: {unreadable}") from unreadable

    async def _exchange(self, method: str, url: str, deadline: float, body: bytes | None = None) -> tuple[int, bytes]:
        if self._http is None:
            raise RuntimeError("use the client as a context manager: async with EnvironmentClient(...) as client")
        return await self._http.exchange(method, url, deadline, body)


def _brief(struct: msgspec.Struct) -> str:
    return str(struct)[:300]


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
