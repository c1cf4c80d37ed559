"""HTTP for the clients of environment servers: one exchange with a deadline, and retry pauses."""

from __future__ import annotations

import asyncio
import random
import secrets
import time

import aiohttp
from yarl import URL

from environments.errors import (
    DamagedAnswerError,
    DeadlineExceededError,
    EnvironmentCallError,
    RefusedError,
    UnreachableError,
)
from environments.protocol import DIGEST_HEADER, content_digest
from environments.token import foreign_origins, token_here

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0


class HttpClient:
    """A pool of keep-alive connections, bound to the event loop that created it."""

    def __init__(self, connections: int) -> None:
        """Open at most this many connections at once.

        Requests carry the token in this process's environment variables, unless they have a login.
        """
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=30.0)
        self._http = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        # The name identifies this client, so that a full server can share its sessions fairly.
        self._headers = {
            "content-type": "application/json",
            "environment-client": secrets.token_hex(8),
        }
        token = token_here()
        self._authorization = {"authorization": f"Bearer {token}"} if token else {}
        self._foreign = foreign_origins()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def exchange(
        self,
        method: str,
        url: str,
        deadline: float,
        body: bytes | None = None,
        login: str = "",
    ) -> tuple[int, bytes]:
        """Send one request and return the status and body of the answer.

        Args:
            url: The URL without a login. Error messages contain it.
            deadline: A time of time.monotonic().
            body: Request body, if any.
            login: Value of the header `authorization` that is sent instead of the token's.

        Raises:
            EnvironmentCallError: UnreachableError, DeadlineExceededError, RefusedError (not a URL),
                or DamagedAnswerError (not HTTP, or the body does not match its digest).
        """
        try:
            is_foreign = URL(url).origin() in self._foreign
        except ValueError as invalid:
            raise RefusedError(f"{url} is not a URL") from invalid
        if login:
            authorization = {"authorization": login}
        else:
            authorization = {} if is_foreign else self._authorization
        timeout = aiohttp.ClientTimeout(total=max(0.001, deadline - time.monotonic()))
        try:
            async with self._http.request(
                method,
                url,
                data=body,
                timeout=timeout,
                headers=self._headers | authorization,
                allow_redirects=False,
            ) as response:
                content, digest = await response.read(), response.headers.get(DIGEST_HEADER)
                if (
                    digest is not None
                    and "sha-256=" in digest
                    and content_digest(content) not in digest
                ):
                    raise DamagedAnswerError(
                        f"{url} sent an answer that does not match its content-digest: "
                        f"{content[:200]!r}"
                    )
                return response.status, content
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as refused:
            raise UnreachableError(f"{url} is not reachable: {refused}", sent=False) from refused
        except TimeoutError as late:
            raise DeadlineExceededError(f"{url} did not answer in time") from late
        except aiohttp.InvalidURL as invalid:
            raise RefusedError(f"{url} is not a URL") from invalid
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as gone:
            raise UnreachableError(f"{url} is not reachable: {gone}") from gone
        except aiohttp.ClientError as wrong:
            raise DamagedAnswerError(f"{url} sent an answer that is not HTTP: {wrong}") from wrong


async def pause(pause_s: float, deadline: float, fault: EnvironmentCallError) -> float:
    """Wait before the next attempt and return the next pause in seconds.

    Raises:
        EnvironmentCallError: `fault`, if the next attempt would have less time than this pause.
            That attempt would likely time out, and its error would hide the actual cause.
    """
    wait_s = pause_s * random.uniform(0.5, 1.0)
    if time.monotonic() + 2 * wait_s >= deadline:
        raise fault
    await asyncio.sleep(wait_s)
    return min(LAST_PAUSE_S, pause_s * 2)
