"""Requests to the servers of one world: choice of server, retries, and decoding of answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

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
"""Attempts to read a page. A page that is unreadable this often is not of our protocol."""
ATTEMPT_S = 20.0
"""Seconds after which a call without an answer is repeated.

A server that is still processing the call answers the repeated one.
"""
AVOID_S = 2.0
"""Seconds for which a replica that did not answer gets no new session, if another can take it."""


@dataclass(eq=False)
class Replica:
    """One of several equivalent servers.

    Attributes:
        address: Its URL, or the file that holds it. See `present_url`.
        url: Its last known base URL, without a login.
        login: User and password of its URL as the header `authorization`, empty if it has none.
        sessions: Number of this client's sessions on it.
        room: Approximate number of sessions that it can hold for this client beside those of
            others. Infinite until it has reported it.
        avoided_until: Time of time.monotonic() from which it may get new sessions again.
        batcher: Combines calls into shared requests, once the server reports that it answers
            promptly.
    """

    address: str
    url: str = field(init=False, default="")
    login: str = field(init=False, default="")
    sessions: int = 0
    room: float = math.inf
    avoided_until: float = 0.0
    batcher: RequestBatcher | None = None
    full: bool = False
    """Whether a client waited in vain for a free session. This is reported once."""
    close_failed: bool = False
    """Whether closing a session failed. This is reported once."""

    def __post_init__(self) -> None:
        self._locate()

    def avoid(self) -> None:
        """Give it no new session for `AVOID_S` seconds.

        Also read its address again, in case it moved.
        """
        self.avoided_until = time.monotonic() + AVOID_S
        self._locate()

    def _locate(self) -> None:
        url = present_url(self.address, self.url)
        if url != self.url:  # otherwise its file is unreadable, or it has not moved
            self.url, self.login = _split_login(url)


class Calls:
    """The replicas of one world and the connections to them, valid from `open` to `close`."""

    def __init__(self, urls: Sequence[str], deadline_s: float, connections: int) -> None:
        """
        Args:
            urls: Addresses of the replicas.
            deadline_s: Default time limit of a call in seconds, with all its retries.
            connections: Most requests in flight at once.
        """
        self.replicas = [Replica(url) for url in urls]
        self._deadline_s = deadline_s
        self._connections = connections
        self._http: HttpClient | None = None

    def open(self) -> None:
        """Bind the connections to the running event loop."""
        self._http = HttpClient(self._connections)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def roomiest(self) -> Replica:
        """Return the replica with the most free sessions.

        Replicas that failed recently come last.
        """
        now = time.monotonic()
        return min(
            self.replicas,
            key=lambda replica: (
                replica.avoided_until > now,
                replica.sessions - replica.room,
                replica.sessions,
            ),
        )

    async def perform(
        self,
        choose: Callable[[], Replica],
        operation: str,
        item: msgspec.Struct,
        complete: Callable[[Reply], bool] = lambda _: True,
        *,
        deadline_s: float | None = None,
    ) -> Reply:
        """Perform one operation, with retries until a valid answer or the deadline.

        Lost and damaged answers are requested again.

        Args:
            choose: Returns the replica of each attempt.
            operation: One of the protocol's operations.
            item: The item to send.
            complete: Returns whether a successful reply has all fields of the operation.
            deadline_s: Time limit in seconds for all attempts. None: the default.

        Raises:
            EnvironmentCallError: The error of the last attempt, or the server's refusal.
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
                    raise DamagedAnswerError(
                        f"{replica.url}/v1/{operation} did not answer {_brief(item)}, but sent "
                        f"{_brief(reply)}"
                    )
                if reply.status != 200:
                    raise _error(
                        reply.status, reply.error, f"{replica.url}/v1/{operation}", of_session=True
                    )
                return reply
            except (UnreachableError, BusyError, DamagedAnswerError) as fault:
                replica.avoid()
                pause_s = await pause(pause_s, deadline, fault)
            except DeadlineExceededError:
                replica.avoid()
                if attempt == deadline:
                    raise

    async def ask(
        self, replica: Replica, operation: str, items: Sequence[msgspec.Struct], deadline: float
    ) -> list[Reply]:
        """Send one request and return one reply per item.

        Args:
            operation: One of the protocol's operations.
            items: The items to send.
            deadline: A time of time.monotonic().

        Raises:
            EnvironmentCallError: The request failed as a whole.
        """
        url = f"{replica.url}/v1/{operation}"
        content = _encode({"items": items})
        status, body = await self._exchange("POST", replica, url, deadline, content)
        try:
            replies = msgspec.json.decode(body, type=Replies)
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            if status == 200:
                raise DamagedAnswerError(
                    f"{url} sent an unreadable answer: {body[:200]!r} ({unreadable})"
                ) from unreadable
            raise _error(status, None, url, body) from unreadable
        if status != 200 and not replies.items:
            raise _error(status, replies.error, url, body)
        if len(replies.items) != len(items):
            raise DamagedAnswerError(f"{url} answered {len(replies.items)} items to {len(items)}")
        return replies.items

    async def read(self, replica: Replica, path: str, kind: type[T]) -> T:
        """Read a page as `kind`, with retries until an answer or the deadline.

        Raises:
            EnvironmentCallError: No answer came, or it is invalid.
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
        """Read a page as `kind` with one request.

        Raises:
            EnvironmentCallError: There is no such page, or it is invalid.
        """
        status, body = await self._exchange("GET", replica, replica.url + path, deadline)
        if status != 200:
            raise _error(status, _error_in(body), replica.url + path, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            raise DamagedAnswerError(
                f"{replica.url}{path} sent an unreadable page: {unreadable}"
            ) from unreadable

    async def _exchange(
        self, method: str, replica: Replica, url: str, deadline: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        if self._http is None:
            raise RuntimeError(
                "use the client as a context manager: async with EnvironmentClient(...) as client"
            )
        return await self._http.exchange(method, url, deadline, body, replica.login)


def _split_login(url: str) -> tuple[str, str]:
    """Return a URL without its user and password, and the header `authorization` for them."""
    try:
        parsed = URL(url)
    except ValueError:
        return url, ""
    if parsed.user is None and parsed.password is None:
        return url, ""
    login = aiohttp.encode_basic_auth(parsed.user or "", parsed.password or "")
    return str(parsed.with_user(None)).rstrip("/"), login


def _brief(struct: msgspec.Struct) -> str:
    return str(struct)[:300]


def _encode(content: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        # UTF-8 cannot encode a lone surrogate: send the action with "?" instead.
        for item in content["items"]:
            item.action = item.action.encode("utf-8", "replace").decode()
        return msgspec.json.encode(content)


def _error(
    status: int, error: Error | None, url: str, body: bytes = b"", *, of_session: bool = False
) -> EnvironmentCallError:
    why = f" {error.type}: {error.message}" if error else f" {body[:200]!r}" if body else ""
    found = error_of_status(status, f"{url}: {status}{why}", of_session=of_session)
    if error is not None:
        found.code, found.field, found.reason = error.type, error.field or "", error.message
    return found


def _error_in(body: bytes) -> Error | None:
    try:
        return msgspec.json.decode(body, type=Replies).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
