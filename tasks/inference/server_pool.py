"""A pool of vLLM servers with the same model: routing, health checks and weight versions.

Routing is sticky: an episode stays with one server, whose prefix cache holds its earlier turns. The
episodes of a server that dies continue on another one. A server that comes back gets the current
weights before it gets an episode.
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
from tasks.inference.vllm_client import (
    INITIAL_WEIGHTS,
    Completion,
    Model,
    ServerUnavailableError,
    VllmClient,
)

log = logging.getLogger(__name__)

PROGRESS_S = 5.0
"""Longest interval between two progress checks of a server while a request waits, in seconds."""
PROBE_S = 0.5
"""Interval between two health checks of a server that is down, in seconds."""


@dataclass(eq=False)
class Replica:
    """One of the servers and its state.

    Attributes:
        address: Its URL, or the file that holds it, see `present_url`.
        sessions: Episodes that are routed to it.
        requests: Number of requests that wait for its answer.
        down: Reason why it gets no requests. Empty if it is up.
        kv_cache_tokens: Capacity of its KV cache in tokens. None if it does not report it.
        generated: Number of generated tokens at the last check. None if it does not report it.
        progressed_at: Time of the last observed growth of `generated` (time.monotonic()).
        checked_at: Time of the last progress check (time.monotonic()).
        next_check: Time of the next health check while it is down (time.monotonic()).
        checking: Whether a health check is running.
        updating: Whether its weights are being replaced. It then gets no requests, and the running
            ones generate nothing.
    """

    server: VllmClient
    address: str
    sessions: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    requests: int = 0
    down: str = ""
    kv_cache_tokens: int | None = None
    generated: int | None = None
    progressed_at: float = 0.0
    checked_at: float = 0.0
    next_check: float = 0.0
    checking: bool = False
    updating: bool = False

    async def complete(self, body: bytes, max_tokens: int, request_seconds: float) -> Completion:
        """Return its answer to a request, without a limit on the time of generation.

        Raises:
            ServerUnavailableError: It cannot answer, or it has generated nothing for
                `request_seconds`. A server that does not report its generated tokens gets the time
                of `max_tokens` at SLOWEST_TOKEN_SECONDS in addition.
            EngineError: It refused the request.
        """
        started, answer = time.monotonic(), asyncio.ensure_future(self.server.complete(body))
        pause = min(PROGRESS_S, request_seconds / 4)
        try:
            while True:
                await asyncio.wait((answer,), timeout=pause)
                if answer.done():
                    return answer.result()
                if self.updating:
                    self.progressed_at = time.monotonic()
                    continue
                await self._update_progress(pause / 2)
                extra = max_tokens * SLOWEST_TOKEN_SECONDS if self.generated is None else 0.0
                if time.monotonic() - max(started, self.progressed_at) > request_seconds + extra:
                    raise ServerUnavailableError(
                        f"{self.server.url} generated no token for {request_seconds + extra:g} s"
                    )
        finally:
            answer.cancel()

    async def _update_progress(self, min_interval_s: float) -> None:
        """Query its generated tokens at most once per `min_interval_s`, for all requests."""
        if time.monotonic() - self.checked_at < min_interval_s:
            return
        self.checked_at = time.monotonic()
        try:
            generated = await self.server.generated_tokens()
        except ServerUnavailableError:
            return
        if generated is not None and generated != self.generated:
            self.progressed_at = time.monotonic()
        self.generated = generated


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that were loaded into the servers.

    Attributes:
        folder: Folder that holds them. None if they were sent.
        version: Version that a server with these weights reports.
        adapters: Names of the LoRA adapters that running requests may use. The last one is the
            version. Empty for whole weights.
    """

    folder: Path | None
    version: str
    adapters: tuple[str, ...] = ()


class ServerPool:
    """The servers of an engine. Use it only in the event loop, except the constructor.

    Attributes:
        replicas: One for each URL.
        loaded: Weights loaded last. None while the servers have their initial weights.
    """

    def __init__(
        self,
        urls: Sequence[str],
        request_seconds: float,
        rank: int = 0,
        update_in_flight: bool = False,
    ) -> None:
        """Create one replica per URL. The arguments are those of `VllmPoolEngine`.

        The order begins with another server in each process, and `route` follows it.
        """
        self.request_seconds, self.update_in_flight = request_seconds, update_in_flight
        first = rank % len(urls)
        urls = [*urls[first:], *urls[:first]]
        self.replicas = [
            Replica(VllmClient(present_url(url), request_seconds), url) for url in urls
        ]
        self.loaded: Loaded | None = None
        self._routes: weakref.WeakKeyDictionary[Any, Replica] = weakref.WeakKeyDictionary()
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def kv_cache_tokens(self) -> int | None:
        """Capacity of all running servers' KV caches in tokens, None if one does not report it."""
        up = [replica for replica in self.replicas if not replica.down]
        capacities = [replica.kv_cache_tokens for replica in up if replica.kv_cache_tokens]
        return sum(capacities) if up and len(capacities) == len(up) else None

    @property
    def kept_version(self) -> str | None:
        """Version of the weights whose running requests continue with the next weights.

        Empty for the initial weights, under which no request is kept. None: every update waits for
        the running requests.
        """
        if not self.update_in_flight:
            return None
        return self.loaded.version if self.loaded else ""

    async def read(self, replica: Replica, loaded: Loaded, keeps: str | None) -> None:
        """Let a server read its weights from their folder.

        Args:
            keeps: As in `VllmClient.read_weights`. Adapters do not need it.
        """
        assert loaded.folder is not None
        if loaded.adapters:
            await replica.server.read_adapter(loaded.folder, loaded.adapters)
        else:
            await replica.server.read_weights(loaded.folder, loaded.version, keeps)

    async def models(self) -> list[Model]:
        """Return the model of each server.

        Raises:
            EngineError: A server does not answer or is not a usable vLLM server, or the servers
                serve different models.
        """

        async def ask(replica: Replica) -> Model:
            server = replica.server
            try:
                model = await server.model()
                # a process that paused it to load weights may have been killed
                await server.resume_if_paused()
                await server.check_log_probabilities(model.id)
                replica.kv_cache_tokens = await server.kv_cache_tokens()
            except (ServerUnavailableError, msgspec.DecodeError, IndexError) as fault:
                raise EngineError(f"no usable vLLM server at {server.url}: {fault}") from fault
            return model

        models = await asyncio.gather(*(ask(replica) for replica in self.replicas))
        for replica, model in zip(self.replicas, models, strict=True):
            if (model.id, model.root) != (models[0].id, models[0].root):
                raise EngineError(
                    f"the vLLM servers have different models: {replica.server.url} serves "
                    f"{model.id} ({model.root}), but {self.replicas[0].server.url} serves "
                    f"{models[0].id} ({models[0].root}). Start all servers with the same model."
                )
        return list(models)

    def route(self, session: object | None) -> Replica | None:
        """Return the server of a session, or None if all servers are down or being updated.

        A session keeps its server. A new session, or one whose server is down, gets the running
        server with the fewest sessions of this process. A request without a session gets the one
        with the fewest requests of those.
        """
        self._start_health_checks()
        replica = self._routes.get(session) if session is not None else None
        if replica is not None and not replica.down and not replica.updating:
            return replica
        up = [each for each in self.replicas if not each.down and not each.updating]
        if not up:
            return None
        # in a tie the first one, so that the processes together fill all servers evenly
        best = min(
            up, key=lambda each: (len(each.sessions), each.requests if session is None else 0)
        )
        if session is not None:
            if replica is not None:
                replica.sessions.discard(session)
            self._routes[session] = best
            best.sessions.add(session)
        return best

    def mark_down(self, replica: Replica, reason: str) -> None:
        """Mark the server as down. It gets no requests until a health check succeeds."""
        if not replica.down:
            log.warning("vLLM server is down: %s", reason)
        replica.down = reason
        # check at once: a connection may break while the server is healthy
        replica.next_check = time.monotonic()

    async def on_all(self, call: Callable[[Replica], Awaitable[None]]) -> None:
        """Await `call` for all servers concurrently.

        A server is marked as up afterwards, or as down if the call raised.
        """

        async def attempt(replica: Replica) -> None:
            try:
                await call(replica)
                replica.down = ""
            except (ServerUnavailableError, EngineError) as fault:
                self.mark_down(replica, str(fault))

        await asyncio.gather(*(attempt(replica) for replica in self.replicas))

    async def begin_update(self) -> None:
        """Hold back requests until `end_update`, and end health checks, which may load weights."""
        for replica in self.replicas:
            replica.updating = True
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def end_update(self) -> None:
        """Send requests again."""
        for replica in self.replicas:
            replica.updating = False

    async def check_weights(self, replica: Replica) -> None:
        """Check that a server has the weights that were loaded last.

        A restarted server has its initial weights. A server that missed a load has older ones.

        Raises:
            ServerUnavailableError: The server has other weights.
        """
        if (
            self.loaded is not None
            and (version := await replica.server.weights_version()) != self.loaded.version
        ):
            raise ServerUnavailableError(
                f"{replica.server.url} has weights version {version!r}, expected "
                f"{self.loaded.version!r}"
            )

    async def check_all_weights(self) -> None:
        """Check that no other process has loaded weights into the servers since the last load.

        A server that does not answer, or that restarted, is checked at its next request.

        Raises:
            EngineError: A server has the weights of another process.
        """
        for replica in self.replicas:
            try:
                version = await replica.server.weights_version()
            except (ServerUnavailableError, EngineError):
                continue
            if self.loaded is not None and version not in (self.loaded.version, INITIAL_WEIGHTS):
                raise EngineError(
                    f"another run loaded its weights into {replica.server.url} meanwhile; let runs "
                    "that share AGENTGYM_ENGINE_URLS take turns, or give each its own servers"
                )

    async def close(self) -> None:
        """Close the connections. The servers keep running."""
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*(replica.server.close() for replica in self.replicas))

    def _start_health_checks(self) -> None:
        now = time.monotonic()
        for replica in self.replicas:
            ready = not replica.checking and not replica.updating and replica.next_check <= now
            if replica.down and ready:
                replica.checking = True
                task = asyncio.ensure_future(self._check(replica))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)

    async def _check(self, replica: Replica) -> None:
        """Mark a server as up once it is healthy and has the current weights."""
        server, loaded = replica.server, self.loaded
        try:
            server.url = present_url(replica.address, server.url)
            await server.healthy()
            if (
                loaded is not None
                and loaded.folder is not None
                and await server.weights_version() != loaded.version
            ):
                await self.read(replica, loaded, self.kept_version)
            await server.resume_if_paused()  # a load may have failed after the weights were in
            await self.check_weights(replica)  # newer weights may have been loaded meanwhile
            replica.down = ""
            log.warning("vLLM server is up again: %s", server.url)
        except (ServerUnavailableError, EngineError) as fault:
            replica.down = str(fault)
        finally:
            replica.checking = False
            replica.next_check = time.monotonic() + PROBE_S
