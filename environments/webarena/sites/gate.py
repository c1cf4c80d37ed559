"""The one server behind all browser contexts. It is their HTTP proxy, so nothing that a page asks for can pass it by.

A request's host names the site and its cookie the episode, with which goes the episode's own database. Whatever is asked of another
host, or without an episode, is refused. Chromium opens no connection except to this server and to the real sites that a task may use.
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

HOSTS = {"shop.test": shop, "forum.test": forum, "repos.test": repositories, "content.test": content, "home.test": homepage}
EPISODE_COOKIE = "episode"


def _is_no_tunnel(record: logging.LogRecord) -> bool:
    return record.msg != "Invalid HTTP request received."


@dataclass(slots=True)
class Episode:
    """One episode's part of the sites.

    Attributes:
        hosts: The hosts that it may visit.
        db: Its database.
        token: What its cookie holds.
        fault: What went wrong in a site, None while nothing has. The page that says so is no observation.
    """

    hosts: frozenset[str]
    db: sqlite3.Connection
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    fault: Exception | None = None


class Gate:
    """Serves the sites of every episode that is open. Used from one event loop."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {host: Starlette(routes=site.routes()) for host, site in HOSTS.items()}
        self._episodes: dict[str, Episode] = {}
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listens on a free port of the loopback interface; `address` is then the proxy's URL."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        listener.setblocking(False)
        config = uvicorn.Config(self, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False, ws="none")
        # Chromium's full build tries to reach its maker through tunnels, which uvicorn refuses with a warning for each.
        logging.getLogger("uvicorn.error").addFilter(_is_no_tunnel)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Ends the server."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving

    def open(self, hosts: Iterable[str], shop: int | None = None) -> Episode:
        """A new episode in the known state; with a number, in that drawn shop."""
        episode = Episode(frozenset(hosts), db=database.copy(shop))
        self._episodes[episode.token] = episode
        return episode

    def close(self, episode: Episode) -> None:
        """Forgets the episode. A second call does nothing."""
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
            log.exception("a bug in a site", extra={"host": host, "path": scope["path"]})
            episode.fault = fault
