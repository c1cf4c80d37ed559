"""What clients of environment servers share: the faults they raise, the HTTP exchange, the pauses between attempts."""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
_JSON = {"content-type": "application/json"}


class EnvironmentFault(Exception):
    """Base of what a call can raise: the environment could not be played, which says nothing about the policy."""


class Unreachable(EnvironmentFault):
    """No server answered before the deadline.

    Attributes:
        sent: Whether the request may have reached a server all the same.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceeded(EnvironmentFault):
    """A server took the request and did not answer before the deadline."""


class SessionLost(EnvironmentFault):
    """The server does not have the session (any more): its lease ran out, or the server was restarted. Start another."""


class ServerFault(EnvironmentFault):
    """The server or the world failed, or answered what makes no sense: a bug there."""


class Refused(EnvironmentFault):
    """The server understood and refused: a wrong task index, a wrong turn, an action after the episode's end. A bug here."""


class Busy(EnvironmentFault):
    """The servers had no session to spare until the deadline."""


class Transport:
    """A pool of keep-alive connections, bound to the event loop in which it was made."""

    def __init__(self, connections: int) -> None:
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=30.0)
        self._http = aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    async def exchange(self, method: str, url: str, deadline: float, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of one answer; `deadline` is a time of time.monotonic().

        Raises:
            EnvironmentFault: Unreachable, DeadlineExceeded, Refused (no URL), ServerFault (no HTTP).
        """
        timeout = aiohttp.ClientTimeout(total=max(0.001, deadline - time.monotonic()))
        try:
            async with self._http.request(method, url, data=body, timeout=timeout, headers=_JSON, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as refused:
            raise Unreachable(f"{url} is not reachable: {refused}", sent=False) from refused
        except TimeoutError as late:
            raise DeadlineExceeded(f"{url} did not answer in time") from late
        except aiohttp.InvalidURL as invalid:
            raise Refused(f"{url} is not a URL") from invalid
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as gone:
            raise Unreachable(f"{url} is not reachable: {gone}") from gone
        except aiohttp.ClientError as wrong:
            raise ServerFault(f"{url} does not speak HTTP: {wrong}") from wrong


async def pause(pause_s: float, deadline: float, fault: EnvironmentFault) -> float:
    """Waits before the next attempt and returns the next pause.

    Raises `fault` when the attempt would have less time than the pause before it: if it then came to nothing, that would be for want of
    time, and say so in place of what was wrong.
    """
    wait_s = pause_s * random.uniform(0.5, 1.0)
    if time.monotonic() + 2 * wait_s >= deadline:
        raise fault
    await asyncio.sleep(wait_s)
    return min(LAST_PAUSE_S, pause_s * 2)


def fault_of(status: int, text: str, *, of_session: bool = False) -> EnvironmentFault:
    """The fault that an HTTP status stands for; 404 and 410 speak of the session only where the answer says so."""
    if status in (429, 503):
        return Busy(text)
    if status in (502, 504):  # a proxy speaks for a server that is not there
        return Unreachable(text)
    if of_session and status in (404, 410):
        return SessionLost(text)
    return Refused(text) if 400 <= status < 500 else ServerFault(text)
