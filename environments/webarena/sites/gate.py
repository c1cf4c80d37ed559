"""The server behind all browser contexts. It is their HTTP proxy, so no request bypasses it.

A request's host selects the site, and its cookie selects the episode with its own database.
Requests to other hosts or without an episode are refused. Chromium connects only to this server and
to the real sites that a task may use.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import SimpleCookie

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.webarena.sites import content, database, forum, homepage, repositories, shop

log = logging.getLogger(__name__)

HOSTS = {
    "shop.test": shop.site,
    "forum.test": forum.site,
    "repos.test": repositories.site,
    "content.test": content.site,
    "home.test": homepage.site,
}
EPISODE_COOKIE = "episode"


def _is_no_tunnel(record: logging.LogRecord) -> bool:
    return record.msg != "Invalid HTTP request received."


@dataclass(slots=True)
class Episode:
    """One episode's access to the sites.

    Attributes:
        hosts: The hosts that it may visit.
        token: The value of its cookie.
        fault: The exception that a site raised. None if there was none. Its error page must not
            become an observation.
    """

    hosts: frozenset[str]
    db: sqlite3.Connection
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    fault: Exception | None = None


class Gate:
    """Serves the sites to all open episodes. Use it from one event loop."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {
            host: Starlette(routes=site.routes) for host, site in HOSTS.items()
        }
        self._episodes: dict[str, Episode] = {}
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen on a free port of the loopback interface and set `address` to the proxy's URL."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        listener.setblocking(False)
        config = uvicorn.Config(
            self,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            ws="none",
        )
        # Chromium's full build tries to reach its vendor through tunnels. uvicorn refuses each with
        # a warning.
        logging.getLogger("uvicorn.error").addFilter(_is_no_tunnel)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Stop the server."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving

    def open(self, hosts: Iterable[str], shop: int | None = None) -> Episode:
        """Start an episode in the initial state. With a number, it uses that generated shop."""
        episode = Episode(frozenset(hosts), db=database.copy(shop))
        self._episodes[episode.token] = episode
        return episode

    def close(self, episode: Episode) -> None:
        """Close the episode and its database. Idempotent."""
        if self._episodes.pop(episode.token, None) is not None:
            episode.db.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower().removesuffix(":80")
        cookie = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(EPISODE_COOKIE)
        episode = self._episodes.get(cookie.value) if cookie else None
        if episode is None or host not in episode.hosts:
            text = "<!doctype html><title>Out of reach</title><h1>This address is not part of the task's sites</h1>"
            await HTMLResponse(text, 403)(scope, receive, send)
            return
        scope["episode"] = episode
        try:
            await self._apps[host](scope, receive, send)
        except Exception as fault:
            log.exception("a site raised an exception", extra={"host": host, "path": scope["path"]})
            episode.fault = fault
