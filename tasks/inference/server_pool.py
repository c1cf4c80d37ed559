"""A pool of vLLM servers with the same model: which one an episode is routed to, which are down, which weights they have.

Routing is sticky: an episode stays with one server, whose prefix cache holds its former turns; the episodes of a server that dies go on
with another. A server that comes back gets the present weights before it gets an episode.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from configs.experiment import SLOWEST_TOKEN_SECONDS
from environments.address import present_url
from tasks.inference.engine import EngineError
from tasks.inference.vllm_client import Completion, Model, ServerUnavailableError, VllmClient

log = logging.getLogger(__name__)

PROGRESS_S = 5.0
"""Longest pause between two looks at what a server generates while a request waits for its answer."""
PROBE_S = 0.5
"""Pause between two health checks of a server that is down."""


@dataclass(eq=False)
class Replica:
    """One of the servers, and what goes on with it.

    Attributes:
        server: Its client.
        address: Its URL, or the file that holds it; see `present_url`.
        sessions: Episodes that are routed to it.
        requests: Requests that wait for its answer.
        down: Why it gets no requests now; empty when it does.
        kv_cache_tokens: Tokens that its KV cache holds; None where it does not tell.
        generated: Tokens that it had generated when it was asked last; None where it does not tell.
        progressed: When that number was seen to grow last (time.monotonic()).
        looked: When it was asked last.
        next_check: When its health is checked again while it is down (time.monotonic()).
        checking: Whether that is being done now.
    """

    server: VllmClient
    address: str
    sessions: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    requests: int = 0
    down: str = ""
    kv_cache_tokens: int | None = None
    generated: int | None = None
    progressed: float = 0.0
    looked: float = 0.0
    next_check: float = 0.0
    checking: bool = False

    async def complete(self, body: bytes, max_tokens: int, request_seconds: float) -> Completion:
        """Its answer to a request, however long it generates.

        Raises:
            ServerUnavailableError: It cannot answer, or it has generated nothing for `request_seconds`. A server that does not tell what
                it generates gets as much more time as `max_tokens` need at SLOWEST_TOKEN_SECONDS.
            EngineError: It refused the request.
        """
        asked, answer = time.monotonic(), asyncio.ensure_future(self.server.complete(body))
        pause = min(PROGRESS_S, request_seconds / 4)
        try:
            while True:
                await asyncio.wait((answer,), timeout=pause)
                if answer.done():
                    return answer.result()
                await self._look(pause / 2)
                extra = max_tokens * SLOWEST_TOKEN_SECONDS if self.generated is None else 0.0
                if time.monotonic() - max(asked, self.progressed) > request_seconds + extra:
                    raise ServerUnavailableError(f"{self.server.url} has generated no token for {request_seconds + extra:g} s")
        finally:
            answer.cancel()

    async def _look(self, least_s: float) -> None:
        """Asks what it has generated, once in `least_s` seconds for all requests that wait."""
        if time.monotonic() - self.looked < least_s:
            return
        self.looked = time.monotonic()
        try:
            generated = await self.server.generated_tokens()
        except ServerUnavailableError:
            return
        if generated is not None and generated != self.generated:
            self.progressed = time.monotonic()
        self.generated = generated


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that servers were given.

    Attributes:
        folder: Where they can be read; None where they were sent.
        version: What a server that has them answers when asked for its version.
    """

    folder: Path | None
    version: str


class ServerPool:
    """The servers. All but the constructor belongs to the event loop.

    Attributes:
        replicas: One for each URL.
        loaded: The weights that the servers were given last; None while they have those of their start.
    """

    def __init__(self, urls: Sequence[str], request_seconds: float) -> None:
        """See `VllmPoolEngine`."""
        self.request_seconds = request_seconds
        self.replicas = [Replica(VllmClient(present_url(url), request_seconds), url) for url in urls]
        self.loaded: Loaded | None = None
        self._routes: weakref.WeakKeyDictionary[Any, Replica] = weakref.WeakKeyDictionary()
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def kv_cache_tokens(self) -> int | None:
        """What the servers that are up hold together; None where one of them does not tell."""
        up = [replica for replica in self.replicas if not replica.down]
        told = [replica.kv_cache_tokens for replica in up if replica.kv_cache_tokens]
        return sum(told) if up and len(told) == len(up) else None

    async def models(self) -> list[Model]:
        """What each server serves.

        Raises:
            EngineError: A server does not answer, or they serve different models, or not as they should.
        """

        async def ask(replica: Replica) -> Model:
            server = replica.server
            try:
                model = await server.model()
                await server.resume_if_paused()  # whoever paused it to load weights may have been killed
                await server.check_log_probabilities(model.id)
                replica.kv_cache_tokens = await server.kv_cache_tokens()
            except (ServerUnavailableError, msgspec.DecodeError, IndexError) as fault:
                raise EngineError(f"{server.url} is not a vLLM server that can be used: {fault}") from fault
            return model

        models = await asyncio.gather(*(ask(replica) for replica in self.replicas))
        for replica, model in zip(self.replicas, models, strict=True):
            if (model.id, model.root) != (models[0].id, models[0].root):
                raise EngineError(
                    f"{replica.server.url} serves {model.id} ({model.root}), but {self.replicas[0].server.url} serves {models[0].id} "
                    f"({models[0].root})"
                )
        return list(models)

    def route(self, session: object | None) -> Replica | None:
        """The server of a session: the one it had, else the up one with the fewest sessions and requests; None when all are down."""
        self._check_the_down()
        replica = self._routes.get(session) if session is not None else None
        if replica is not None and not replica.down:
            return replica
        up = [each for each in self.replicas if not each.down]
        if not up:
            return None
        best = min(up, key=lambda each: (len(each.sessions), each.requests))
        if session is not None:
            if replica is not None:
                replica.sessions.discard(session)
            self._routes[session] = best
            best.sessions.add(session)
        return best

    def put_down(self, replica: Replica, why: str) -> None:
        """Sends it no requests until a health check finds it well."""
        if not replica.down:
            log.warning("a vLLM server is down: %s", why)
        replica.down = why
        replica.next_check = time.monotonic()  # a connection may break without the server

    async def put_down_unless(self, succeeds: Callable[[Replica], Awaitable[None]]) -> None:
        """Awaits `succeeds` for each server at once; a server is up afterwards if it did, and down if it raised."""

        async def attempt(replica: Replica) -> None:
            try:
                await succeeds(replica)
                replica.down = ""
            except (ServerUnavailableError, EngineError) as fault:
                self.put_down(replica, str(fault))

        await asyncio.gather(*(attempt(replica) for replica in self.replicas))

    async def check_weights(self, replica: Replica) -> None:
        """A server that was restarted has the weights of its start, and one that was down when new ones came has older ones.

        Raises:
            ServerUnavailableError: It has not the weights that were loaded last.
        """
        if self.loaded is not None and (version := await replica.server.weights_version()) != self.loaded.version:
            raise ServerUnavailableError(f"{replica.server.url} has the weights {version!r}, not {self.loaded.version!r}")

    async def close(self) -> None:
        """Closes the connections; the servers stay as they are."""
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*(replica.server.close() for replica in self.replicas))

    def _check_the_down(self) -> None:
        now = time.monotonic()
        for replica in self.replicas:
            if replica.down and not replica.checking and replica.next_check <= now:
                replica.checking = True
                task = asyncio.ensure_future(self._check(replica))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)

    async def _check(self, replica: Replica) -> None:
        """Takes a server back once it is healthy and has the present weights."""
        server, loaded = replica.server, self.loaded
        try:
            server.url = present_url(replica.address, server.url)
            await server.healthy()
            if loaded is not None and loaded.folder is not None and await server.weights_version() != loaded.version:
                await server.read_weights(loaded.folder, loaded.version)
            await self.check_weights(replica)  # others may have been loaded meanwhile
            replica.down = ""
            log.warning("a vLLM server is back: %s", server.url)
        except (ServerUnavailableError, EngineError) as still:
            replica.down = str(still)
        finally:
            replica.checking = False
            replica.next_check = time.monotonic() + PROBE_S
