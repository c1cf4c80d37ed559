"""HTTP Basic login in front of a server, with a growing pause after wrong logins."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE_GUESSES = 5
LONGEST_PAUSE_S = 300.0
MOST_CLIENTS = 10_000
ESTABLISHED = "01"
HEALTH = ("/health", "/api/health", "/api/ready")


class WrongLogins:
    """Counts wrong logins per client and computes how long each client must wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: Returns the time in seconds.
        """
        self._clock = clock
        self._clients: dict[str, tuple[int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._clients)

    def pause_s(self, client: str) -> float:
        """Return the seconds until this client's login is checked again (0.0: not paused)."""
        _, until = self._clients.get(client, (0, 0.0))
        return max(0.0, until - self._clock())

    def add(self, client: str) -> None:
        """Count one wrong login. After the free guesses, each further one doubles the pause."""
        now = self._clock()
        count, until = self._clients.pop(client, (0, now))
        if now > until + LONGEST_PAUSE_S:
            count = 0
        count += 1
        pause = (
            min(LONGEST_PAUSE_S, 2.0 ** min(20, count - FREE_GUESSES))
            if count > FREE_GUESSES
            else 0.0
        )
        self._clients[client] = (count, now + pause)
        if len(self._clients) > MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def forget(self, client: str) -> None:
        """Clear the wrong logins of a client that has logged in."""
        self._clients.pop(client, None)


class LoginGate:
    """An application behind a login.

    A client with many wrong logins is answered 429 for a while, and its login is not checked. The
    client is an address or, on this machine, a Unix user, so that no user can lock out another. The
    server's own user can read the login, so its correct login is always accepted.
    """

    def __init__(
        self, app: ASGIApp, login: str, realm: str, *, app_checks_login: bool = False
    ) -> None:
        """
        Args:
            app: The protected application.
            login: "user:password".
            realm: Shown by a browser when it asks for the login.
            app_checks_login: Whether `app` refuses requests without a login. Then only wrong logins
                are counted here.
        """
        self._app = app
        self._login = login.encode()
        self._realm = realm
        self._app_checks_login = app_checks_login
        self._wrong_logins = WrongLogins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refusal(scope)
            await (refused or self._app)(scope, receive, send)
        elif scope["type"] == "websocket" and not self._app_checks_login:
            await send({"type": "websocket.close"}) if self._refusal(scope) else await self._app(
                scope, receive, send
            )
        elif scope["type"] == "websocket":
            await self._app(scope, self._checked(scope, receive), send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        if scope["path"] in HEALTH:
            from_page = Headers(scope=scope).get("origin") is not None
            return (
                PlainTextResponse("web pages may not request the health check", 403)
                if from_page
                else None
            )
        credentials = Headers(scope=scope).get("authorization")
        if credentials is None:
            return None if self._app_checks_login else self._unauthorized()
        if (pause := self._pause_s(scope, _decoded(credentials))) > 0:
            seconds = str(math.ceil(pause))
            return PlainTextResponse(
                f"too many wrong logins. Try again in {seconds} s.", 429, {"Retry-After": seconds}
            )
        if self._app_checks_login or hmac.compare_digest(_decoded(credentials), self._login):
            return None
        return self._unauthorized()

    def _unauthorized(self) -> PlainTextResponse:
        challenge = {"WWW-Authenticate": f'Basic realm="{self._realm}", charset="UTF-8"'}
        return PlainTextResponse(f"not logged in. Use the login of {self._realm}.", 401, challenge)

    def _pause_s(self, scope: Scope, credentials: bytes) -> float:
        """Return the seconds for which this login is refused unchecked.

        A login that is checked is counted.
        """
        is_correct = hmac.compare_digest(credentials, self._login)
        if is_correct and not self._wrong_logins:
            return 0.0
        client = client_of(scope)
        if (
            not (is_correct and client == _user(os.getuid()))
            and (pause := self._wrong_logins.pause_s(client)) > 0
        ):
            return pause
        if is_correct:
            self._wrong_logins.forget(client)
        else:
            self._wrong_logins.add(client)
        return 0.0

    def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Check the message with which Prefect's clients log in to a websocket."""

        async def checked() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and b'"auth"' in (
                text := (message.get("text") or "").encode()
            ):
                try:
                    words = json.loads(text)
                    credentials = str(words["token"]).encode() if words["type"] == "auth" else None
                except (ValueError, KeyError, TypeError):
                    credentials = None
                if credentials is not None and self._pause_s(scope, credentials) > 0:
                    return {"type": "websocket.disconnect", "code": 1008}
            return message

        return checked


def no_frames(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that browsers do not show its pages in frames of other pages."""
    refused = [
        (b"x-frame-options", b"DENY"),
        (b"content-security-policy", b"frame-ancestors 'none'"),
    ]

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            await send(
                {**message, "headers": [*message["headers"], *refused]} if is_start else message
            )

        await app(scope, receive, with_headers)

    return wrapped


def client_of(scope: Scope) -> str:
    """Return the client of a request: its address, or its Unix user on this machine.

    Under IPv6 the client is the 64-bit network of the address.
    """
    host, port = scope.get("client") or ("", 0)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_loopback:
        uid = _uid_of_socket(address, port)
        return host if uid is None else _user(uid)
    return (
        str(ipaddress.ip_network((address, 64), strict=False))
        if address.version == 6
        else str(address)
    )


def _user(uid: int) -> str:
    return f"user {uid}"


def _uid_of_socket(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> int | None:
    """Return the owner of the open TCP socket at a loopback address, or None if unlisted."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    words = [
        int.from_bytes(address.packed[at : at + 4], "little")
        for at in range(0, len(address.packed), 4)
    ]
    local = "".join(f"{word:08X}" for word in words) + f":{port:04X}"
    mapped = "0000000000000000FFFF0000" + local if family == socket.AF_INET else local
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[1] in (local, mapped) and columns[3] == ESTABLISHED:
                return int(columns[7])
    return None


def _decoded(header: str) -> bytes:
    """Return the "user:password" of a Basic Authorization header, or b"" for other schemes."""
    scheme, _, word = header.partition(" ")
    try:
        return base64.b64decode(word.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""
