"""vLLM servers as one engine: on this machine or on many, by their URLs.

An episode stays with one server, whose prefix cache holds its former turns; the episodes of a server that dies go on with another. As a
request says everything (token ids, seed), moving one loses nothing but the cache. A server that comes back gets the present
weights before it gets an episode; a restart that nobody noticed is found out by its new connection.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tasks.policy.engine import EngineFault, Generation, Sampling
from tasks.policy.loop_session import LoopSession

if TYPE_CHECKING:
    import torch

    from tasks.policy.weight_transfer import WeightTransfer

log = logging.getLogger(__name__)

CONNECT_S = 5.0
PROBE_S = 0.5
"""Pause between two looks at a server that is down."""
LOAD_S = 600.0


class _Gone(Exception):
    """A server did not answer, or answered that it cannot."""


@dataclass(eq=False)
class Server:
    """One of the servers.

    Attributes:
        url: Its base URL.
        sessions: Episodes that stay with it.
        down: Why it gets no requests now; empty when it does.
        cache_tokens: Tokens that its KV cache holds; None where it does not tell.
        look_at: When to look at it again (time.monotonic()).
        looked_at: Whether somebody does so now.
    """

    url: str
    sessions: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    requests: int = 0
    down: str = ""
    cache_tokens: int | None = None
    look_at: float = 0.0
    looked_at: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that servers were given.

    Attributes:
        folder: Where they can be read; None where they were sent.
        version: What a server that has them answers when asked for its version.
    """

    folder: Path | None
    version: str


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _LogProbabilities(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbabilities | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _WorldSize(msgspec.Struct):
    world_size: int


def cache_tokens(metrics: bytes) -> int | None:
    """Tokens that the KV cache holds, from what a vLLM server tells Prometheus; None where it does not tell."""
    tokens = sum(
        int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        for family in text_string_to_metric_families(metrics.decode())
        for sample in family.samples
        if sample.name == "vllm:cache_config_info" and sample.labels.get("num_gpu_blocks", "None").isdecimal()
    )
    return tokens or None


class VllmServerEngine:
    """An `Engine` that is one or more vLLM servers of the same model.

    The servers need `--logprobs-mode processed_logprobs`; `--enable-prompt-tokens-details` for the prefix cache's hit rate; and
    VLLM_SERVER_DEV_MODE=1 where weights are to be loaded. `vllm_servers.command` gives the whole command.

    Attributes:
        model: What the servers were started with: a Hugging Face name or folder, where the tokenizer is.
        moved: Requests that went on with another server.
        loaded: The weights that the servers were given last; None while they have those of their start.
    """

    name = "vllm"
    apart = True
    exact = False

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_seconds: float = 60.0,
        weights_folder: Path | None = None,
        transfer: WeightTransfer | None = None,
    ) -> None:
        """Asks every server for its model.

        Args:
            urls: Base URLs, without /v1.
            request_seconds: A server that has not answered a request by then is taken for stuck; the request goes to another.
            weights_folder: Where new weights are put for the servers to read: on one machine any folder, best in memory (/dev/shm,
                the default where there is one); on many a shared one.
            transfer: What sends new weights to the servers instead.

        Raises:
            EngineFault: A server does not answer, or they serve different models, or not as they should.
        """
        if not urls:
            raise EngineFault("no URL of a vLLM server is given")
        self.servers = [Server(url.rstrip("/")) for url in urls]
        self._request_seconds = request_seconds
        memory = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="weights-", dir=weights_folder or (memory if memory.is_dir() else None)))
        self.loaded: Loaded | None = None
        self._loads = 0
        self._transfer = transfer
        self._session = LoopSession(self._connect)
        self._seats: weakref.WeakKeyDictionary[Any, Server] = weakref.WeakKeyDictionary()
        self._lookers: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self.generated_tokens = self.prompt_tokens = self.cached_tokens = self.policy_version = self.moved = 0
        models = asyncio.run(self._models())
        self._model, self.model = models[0].id, models[0].root or models[0].id
        self.context_length = min(model.max_model_len or 2**31 for model in models)

    @property
    def cache_tokens(self) -> int | None:
        """What the servers that are up hold together; None where one of them does not tell."""
        up = [server for server in self.servers if not server.down]
        told = [server.cache_tokens for server in up if server.cache_tokens]
        return sum(told) if up and len(told) == len(up) else None

    async def generate(self, tokens: Sequence[int], sampling: Sampling, session: object | None = None) -> Generation:
        """Continues `tokens`; see `Engine.generate`. Goes from server to server until one answers or the caller's patience ends."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": list(tokens),
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop_token_ids": sampling.stop_tokens,
                "ignore_eos": True,  # what ends a message is said by stop_tokens alone
                "seed": sampling.seed,
                "logprobs": 0,
                "return_token_ids": True,
                "skip_special_tokens": False,
            }
        )
        self._in_flight += 1
        try:
            while True:
                server = self._seat(session)
                if server is None:
                    await asyncio.sleep(PROBE_S / 5)
                    continue
                try:
                    return await self._ask(server, body)
                except _Gone as gone:
                    self._put_down(server, str(gone))
                    self.moved += 1
        finally:
            self._in_flight -= 1

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Gives every server the weights, through a folder or by its transfer; see `Engine.load`.

        A server that is down gets them when it comes back, or where they are sent with the next ones.

        Raises:
            EngineFault: Requests are in flight, or no server took the weights.
        """
        if self._in_flight:
            raise EngineFault(f"weights cannot change while {self._in_flight} requests are in flight")
        self._loads += 1
        former, version = self.loaded, f"{self._folder.name}/{self._loads}"
        if self._transfer is not None:
            self._send([(name, tensor.detach()) for name, tensor in weights], version, self._transfer)
        else:
            self._write(weights, version)
        if former is not None and former.folder is not None:
            shutil.rmtree(former.folder, ignore_errors=True)
        if all(server.down for server in self.servers):
            raise EngineFault(f"no vLLM server took the weights: {self._troubles()}")

    def _write(self, weights: Iterable[tuple[str, torch.Tensor]], version: str) -> None:
        from safetensors.torch import save_file

        folder = self._folder / str(self._loads)
        folder.mkdir()
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}, folder / "model.safetensors")
        self.loaded = Loaded(folder, version)
        asyncio.run(self._put_down_unless(self._load))

    def _send(self, weights: list[tuple[str, torch.Tensor]], version: str, transfer: WeightTransfer) -> None:
        """To all servers at once: all stand still until all have them."""
        members: dict[Server, tuple[int, str]] = {}  # workers and former version

        async def prepare(server: Server) -> None:
            await self._post(server, "/pause?mode=wait", b"{}", LOAD_S)
            size = await self._post(server, "/get_world_size", b"", self._request_seconds, method="GET")
            members[server] = msgspec.json.decode(size, type=_WorldSize).world_size, await self._weights_of(server)

        async def accept(server: Server) -> None:
            if server not in members:
                raise _Gone(server.down)
            await self._post(server, "/reset_prefix_cache", b"{}", LOAD_S)
            await self._post(server, "/update_weight_version", msgspec.json.encode({"new_version": version}), LOAD_S)
            await self._post(server, "/resume", b"{}", LOAD_S)

        asyncio.run(self._put_down_unless(prepare))
        if not members:
            return
        former = self.loaded.version if self.loaded else ""
        stayed = all(had == former for _, had in members.values())
        try:
            transfer.send(weights, {server.url: workers for server, (workers, _) in members.items()}, anew=not stayed)
        except RuntimeError as fault:
            asyncio.run(self._put_down_unless(self._resume))
            raise EngineFault(
                f"{fault}; servers that weights are sent to were started with --weight-transfer-config and VLLM_SERVER_DEV_MODE=1"
            ) from fault
        self.loaded = Loaded(None, version)
        asyncio.run(self._put_down_unless(accept))

    def follow(self, loaded: Loaded) -> None:
        """Goes on with the weights that another process has loaded into the same servers; one that has others is down until it has them."""
        self.loaded = loaded
        asyncio.run(self._put_down_unless(self._check_weights))

    def close(self) -> None:
        """Removes the folder of the weights; the servers stay as they are."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()

        async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionCreateEndParams) -> None:
            if context.trace_request_ctx is not None:
                context.trace_request_ctx.fresh = True

        trace.on_connection_create_end.append(connected)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        return aiohttp.ClientSession(connector=connector, trace_configs=[trace], headers={"content-type": "application/json"})

    def _seat(self, session: object | None) -> Server | None:
        """The server of a session: the one it had, else the up one with the fewest sessions and requests; None when all are down."""
        self._look_at_the_down()
        server = self._seats.get(session) if session is not None else None
        if server is not None and not server.down:
            return server
        up = [each for each in self.servers if not each.down]
        if not up:
            return None
        best = min(up, key=lambda each: (len(each.sessions), each.requests))
        if session is not None:
            if server is not None:
                server.sessions.discard(session)
            self._seats[session] = best
            best.sessions.add(session)
        return best

    async def _ask(self, server: Server, body: bytes) -> Generation:
        connection = SimpleNamespace(fresh=False)
        version = self.policy_version
        server.requests += 1
        try:
            answer = await self._post(server, "/v1/completions", body, self._request_seconds, connection)
        finally:
            server.requests -= 1
        if connection.fresh:
            await self._check_weights(server)
        try:
            completion = msgspec.json.decode(answer, type=_Completion)
            [choice] = completion.choices
        except (msgspec.DecodeError, ValueError) as unreadable:
            raise EngineFault(f"{server.url} answered something unexpected: {answer[:200]!r} ({unreadable})") from unreadable
        tokens = choice.token_ids or []
        sampled = [x for x in (choice.logprobs.token_logprobs if choice.logprobs else []) if x is not None]
        if choice.finish_reason == "abort":
            raise _Gone(f"{server.url} aborted a request")
        if not tokens or len(sampled) != len(tokens):
            raise EngineFault(
                f"{server.url} answered {len(tokens)} token ids and {len(sampled)} log-probabilities; is it a vLLM server of a version "
                "that knows return_token_ids?"
            )
        self.generated_tokens += len(tokens)
        if completion.usage is not None:
            self.prompt_tokens += completion.usage.prompt_tokens
            if completion.usage.prompt_tokens_details is not None:
                self.cached_tokens += completion.usage.prompt_tokens_details.cached_tokens or 0
        return Generation(tokens, sampled, version)

    async def _post(
        self, server: Server, path: str, body: bytes, seconds: float, context: SimpleNamespace | None = None, method: str = "POST"
    ) -> bytes:
        """The body of a good answer.

        Raises:
            _Gone: The server did not answer, or failed.
            EngineFault: It understood and refused.
        """
        session = await self._session.get()
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        try:
            async with session.request(method, server.url + path, data=body, timeout=timeout, trace_request_ctx=context) as response:
                answer = await response.read()
                status = response.status
        except TimeoutError as late:
            raise _Gone(f"{server.url}{path} did not answer within {seconds:g} s") from late
        except aiohttp.ClientError as gone:
            raise _Gone(f"{server.url} is not reachable: {gone!r}") from gone
        if status == 200:
            return answer
        said = f"{server.url}{path} answered {status}: {answer[:300].decode(errors='replace')}"
        if status >= 500 or status == 429:
            raise _Gone(said)
        raise EngineFault(said)

    def _put_down(self, server: Server, why: str) -> None:
        if not server.down:
            log.warning("a vLLM server is down: %s", why)
        server.down = why
        server.look_at = time.monotonic()  # a connection may break without the server

    def _look_at_the_down(self) -> None:
        now = time.monotonic()
        for server in self.servers:
            if server.down and not server.looked_at and server.look_at <= now:
                server.looked_at = True
                task = asyncio.ensure_future(self._look_at(server))
                self._lookers.add(task)
                task.add_done_callback(self._lookers.discard)

    async def _look_at(self, server: Server) -> None:
        """Takes a server back once it is healthy and has the present weights."""
        try:
            await self._post(server, "/health", b"", CONNECT_S, method="GET")
            if self.loaded is not None and self.loaded.folder is not None and await self._weights_of(server) != self.loaded.version:
                await self._load(server)
            await self._check_weights(server)
            server.down = ""
            log.warning("a vLLM server is back: %s", server.url)
        except (_Gone, EngineFault) as still:
            server.down = str(still)
        finally:
            server.looked_at = False
            server.look_at = time.monotonic() + PROBE_S

    async def _models(self) -> list[_Model]:
        async def ask(server: Server) -> _Model:
            try:
                found = await self._post(server, "/v1/models", b"", self._request_seconds, method="GET")
                model = msgspec.json.decode(found, type=_Models).data[0]
                await self._resume(server)  # whoever paused it to load weights may have been killed
                await self._check_log_probabilities(server, model.id)
                with suppress(EngineFault):  # behind a gateway the route may be shut
                    server.cache_tokens = cache_tokens(await self._post(server, "/metrics", b"", self._request_seconds, method="GET"))
            except (_Gone, msgspec.DecodeError, IndexError) as fault:
                raise EngineFault(f"{server.url} is not a vLLM server that can be used: {fault}") from fault
            return model

        models = await asyncio.gather(*(ask(server) for server in self.servers))
        for server, model in zip(self.servers, models, strict=True):
            if (model.id, model.root) != (models[0].id, models[0].root):
                raise EngineFault(
                    f"{server.url} serves {model.id} ({model.root}), but {self.servers[0].url} serves {models[0].id} ({models[0].root})"
                )
        return list(models)

    async def _check_log_probabilities(self, server: Server, model: str) -> None:
        """Of the only token that is allowed, the probability is 1 under the distribution sampled from, and not in raw logits."""
        request = {"model": model, "prompt": [1], "max_tokens": 1, "allowed_token_ids": [2], "logprobs": 0, "return_token_ids": True}
        answer = await self._post(server, "/v1/completions", msgspec.json.encode(request), self._request_seconds)
        [choice] = msgspec.json.decode(answer, type=_Completion).choices
        if choice.logprobs is None or choice.logprobs.token_logprobs[:1] != [0.0]:
            raise EngineFault(
                f"{server.url} tells log-probabilities that are not those of the distribution it samples from; start it with "
                "--logprobs-mode processed_logprobs"
            )

    async def _check_weights(self, server: Server) -> None:
        """A server that was restarted has the weights of its start, and one that was down when new ones came has older ones."""
        if self.loaded is not None and (version := await self._weights_of(server)) != self.loaded.version:
            raise _Gone(f"{server.url} has the weights {version!r}, not {self.loaded.version!r}")

    async def _weights_of(self, server: Server) -> str:
        info = await self._post(server, "/weight_info", b"", self._request_seconds, method="GET")
        return msgspec.json.decode(info, type=_WeightInfo).weight_version

    async def _put_down_unless(self, succeeds: Callable[[Server], Awaitable[None]]) -> None:
        async def attempt(server: Server) -> None:
            try:
                await succeeds(server)
                server.down = ""
            except (_Gone, EngineFault) as fault:
                self._put_down(server, str(fault))

        await asyncio.gather(*(attempt(server) for server in self.servers))

    async def _load(self, server: Server) -> None:
        """Pauses the server, lets it read the weights and go on, also when it fails or is cancelled in between."""
        assert self.loaded is not None
        assert self.loaded.folder is not None
        steps: tuple[tuple[str, dict[str, Any]], ...] = (
            ("/pause?mode=wait", {}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self.loaded.folder)}}),
            ("/reset_prefix_cache", {}),
            ("/update_weight_version", {"new_version": self.loaded.version}),
        )
        try:
            for path, content in steps:
                await self._post(server, path, msgspec.json.encode(content), LOAD_S)
        except EngineFault as refused:
            raise EngineFault(f"{refused}; weights can be loaded into servers that were started with VLLM_SERVER_DEV_MODE=1") from refused
        except asyncio.CancelledError:
            await self._resume(server)
            raise
        await self._post(server, "/resume", b"{}", LOAD_S)

    async def _resume(self, server: Server) -> None:
        """Lets a server go on that may have been paused; one that cannot be paused has no such address."""
        with suppress(_Gone, EngineFault):
            await self._post(server, "/resume", b"{}", CONNECT_S)

    def _troubles(self) -> str:
        return "; ".join(server.down for server in self.servers if server.down)
