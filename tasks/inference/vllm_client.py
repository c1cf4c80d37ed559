"""HTTP client of one vLLM server: completions, health, pausing, new weights."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tasks.inference.engine import EngineError
from tasks.inference.http_session import PerLoopSession
from tasks.inference.token_guard import VARIABLE, authorization

CONNECT_S = 5.0
LOAD_S = 600.0


class ServerUnavailableError(Exception):
    """A server did not answer, or answered that it cannot."""


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


class Model(msgspec.Struct):
    """What a server serves.

    Attributes:
        id: What it calls the model.
        root: What it was started with: a Hugging Face name or folder.
        max_model_len: Most tokens of prompt and output together.
    """

    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[Model]


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _WorldSize(msgspec.Struct):
    world_size: int


class Completion(msgspec.Struct, frozen=True):
    """A server's answer to a request.

    Attributes:
        tokens: What was sampled.
        log_probabilities: Of each token, under the distribution that it was sampled from.
        prompt_tokens: Of the request.
        cached_tokens: How many of these were in the prefix cache.
        fresh: Whether the connection was new: the server may have been restarted since the last one.
    """

    tokens: list[int]
    log_probabilities: list[float]
    prompt_tokens: int
    cached_tokens: int
    fresh: bool


def kv_cache_tokens(metrics: bytes) -> int | None:
    """Tokens that the KV cache holds, from what a vLLM server tells Prometheus; None where it does not tell."""
    tokens = sum(
        int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        for family in text_string_to_metric_families(metrics.decode())
        for sample in family.samples
        if sample.name == "vllm:cache_config_info" and sample.labels.get("num_gpu_blocks", "None").isdecimal()
    )
    return tokens or None


def generated_tokens(metrics: bytes) -> int | None:
    """Tokens that a vLLM server has generated since its start, from what it tells Prometheus; None where it does not tell."""
    counts = [
        int(sample.value)
        for family in text_string_to_metric_families(metrics.decode())
        for sample in family.samples
        if sample.name == "vllm:generation_tokens_total"
    ]
    return sum(counts) if counts else None


class VllmClient:
    """A vLLM server by its URL. Every method may raise `ServerUnavailableError`, and `EngineError` where the server understood and refused.

    Attributes:
        url: Its base URL, without /v1.
    """

    def __init__(self, url: str, request_seconds: float) -> None:
        """`request_seconds`: when it has not answered a request that generates nothing by then, it is taken for stuck."""
        self.url = url.rstrip("/")
        self._request_seconds = request_seconds
        self._session = PerLoopSession(_connect)

    async def healthy(self) -> None:
        """Returns if it is."""
        await self._get("/health", CONNECT_S)

    async def model(self) -> Model:
        """What it serves. Another kind of server may raise msgspec.DecodeError or IndexError."""
        return msgspec.json.decode(await self._get("/v1/models"), type=_Models).data[0]

    async def kv_cache_tokens(self) -> int | None:
        """Tokens that its KV cache holds; None where it does not tell."""
        try:
            return kv_cache_tokens(await self._get("/metrics"))
        except EngineError:  # behind a gateway the route may be shut
            return None

    async def generated_tokens(self) -> int | None:
        """Tokens that it has generated since its start; None where it does not tell."""
        try:
            return generated_tokens(await self._get("/metrics", CONNECT_S))
        except EngineError:  # behind a gateway the route may be shut
            return None

    async def workers(self) -> int:
        """Its processes that hold weights: their number."""
        return msgspec.json.decode(await self._get("/get_world_size"), type=_WorldSize).world_size

    async def weights_version(self) -> str:
        """The version of the weights that it was told last; "default" for those of its start."""
        return msgspec.json.decode(await self._get("/weight_info"), type=_WeightInfo).weight_version

    async def complete(self, body: bytes) -> Completion:
        """Answers a request of /v1/completions with one choice. There is no deadline; `Replica.complete` ends one that is stuck."""
        connection = SimpleNamespace(fresh=False)
        answer = await self._ask("POST", "/v1/completions", body, None, connection)
        try:
            completion = msgspec.json.decode(answer, type=_Completion)
            [choice] = completion.choices
        except (msgspec.DecodeError, ValueError) as unreadable:
            raise EngineError(f"{self.url} answered something unexpected: {answer[:200]!r} ({unreadable})") from unreadable
        tokens = choice.token_ids or []
        sampled = [x for x in (choice.logprobs.token_logprobs if choice.logprobs else []) if x is not None]
        if choice.finish_reason == "abort":
            raise ServerUnavailableError(f"{self.url} aborted a request")
        if not tokens or len(sampled) != len(tokens):
            raise EngineError(
                f"{self.url} answered {len(tokens)} token ids and {len(sampled)} log-probabilities; is it a vLLM server of a version "
                "that knows return_token_ids?"
            )
        usage = completion.usage or _Usage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return Completion(tokens, sampled, usage.prompt_tokens, cached or 0, connection.fresh)

    async def check_log_probabilities(self, model: str) -> None:
        """Of the only token that is allowed, the probability is 1 under the distribution sampled from, and not in raw logits."""
        request = {"model": model, "prompt": [1], "max_tokens": 1, "allowed_token_ids": [2], "logprobs": 0, "return_token_ids": True}
        if (await self.complete(msgspec.json.encode(request))).log_probabilities != [0.0]:
            raise EngineError(
                f"{self.url} tells log-probabilities that are not those of the distribution it samples from; start it with "
                "--logprobs-mode processed_logprobs"
            )

    async def pause(self) -> None:
        """Finishes what it generates and then stands still, until it is resumed."""
        await self._post("/pause?mode=wait", {})

    async def resume(self) -> None:
        """Goes on."""
        await self._post("/resume", {})

    async def resume_if_paused(self) -> None:
        """Lets it go on that may have been paused; one that cannot be paused has no such address."""
        with suppress(ServerUnavailableError, EngineError):
            await self._ask("POST", "/resume", b"{}", CONNECT_S)

    async def renew(self, version: str) -> None:
        """Drops what it has cached of its former weights, and tells it the version of those that it has now."""
        await self._post("/reset_prefix_cache", {})
        await self._post("/update_weight_version", {"new_version": version})

    async def read_weights(self, folder: Path, version: str) -> None:
        """Pauses it, lets it read the weights in `folder` and go on, also when that fails or is cancelled in between."""
        try:
            await self.pause()
            await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            await self.renew(version)
        except EngineError as refused:
            raise EngineError(f"{refused}; weights can be loaded into servers that were started with VLLM_SERVER_DEV_MODE=1") from refused
        except asyncio.CancelledError:
            await self.resume_if_paused()
            raise
        await self.resume()

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def _get(self, path: str, seconds: float | None = None) -> bytes:
        return await self._ask("GET", path, b"", seconds or self._request_seconds)

    async def _post(self, path: str, content: dict[str, Any]) -> None:
        await self._ask("POST", path, msgspec.json.encode(content), LOAD_S)

    async def _ask(self, method: str, path: str, body: bytes, seconds: float | None, context: SimpleNamespace | None = None) -> bytes:
        """The body of a good answer."""
        session = await self._session.get()
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        try:
            async with session.request(
                method, self.url + path, data=body, timeout=timeout, trace_request_ctx=context, allow_redirects=False
            ) as response:
                answer = await response.read()
                status = response.status
        except TimeoutError as late:
            raise ServerUnavailableError(f"{self.url}{path} did not answer within {seconds:g} s") from late
        except aiohttp.ClientError as gone:
            raise ServerUnavailableError(f"{self.url} is not reachable: {gone!r}") from gone
        if status == 200:
            return answer
        said = f"{self.url}{path} answered {status}: {answer[:300].decode(errors='replace')}"
        if status == 401:
            raise EngineError(f"{said}; set {VARIABLE} to the token of this server")
        if status >= 500 or status == 429:
            raise ServerUnavailableError(said)
        raise EngineError(said)


def _connect() -> aiohttp.ClientSession:
    """Connections without limit that tell a request's context when they are new."""
    trace = aiohttp.TraceConfig()

    async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionCreateEndParams) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.fresh = True

    trace.on_connection_create_end.append(connected)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
    headers = {"content-type": "application/json", **authorization()}
    return aiohttp.ClientSession(connector=connector, trace_configs=[trace], headers=headers)
