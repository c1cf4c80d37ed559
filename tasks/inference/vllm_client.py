"""HTTP client of one vLLM server: completions, health, pausing and new weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tasks.inference.engine import EngineError
from tasks.inference.http_session import PerLoopSession
from tasks.inference.token_guard import VARIABLE, authorization

CONNECT_S = 5.0
LOAD_S = 600.0


INITIAL_WEIGHTS = "default"
"""Version of the weights that a vLLM server starts with."""


class ServerUnavailableError(Exception):
    """A server did not answer, or reported that it cannot answer."""


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _LogProbabilities(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _LogProbability(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbabilities | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[int, _LogProbability] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class Model(msgspec.Struct):
    """Model of a server.

    Attributes:
        id: The server's name of the model.
        root: Hugging Face name or folder that the server was started with.
        max_model_len: Maximum tokens of prompt and output together.
        parent: Base model of a LoRA adapter. None for the base model.
    """

    id: str
    root: str | None = None
    max_model_len: int | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[Model]


class _Text(msgspec.Struct):
    prompt: str


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _WorldSize(msgspec.Struct):
    world_size: int


class Completion(msgspec.Struct, frozen=True):
    """A server's answer to a request.

    Attributes:
        tokens: Sampled token ids.
        log_probabilities: Log-probability of each token under the sampling distribution.
        prompt_tokens: Number of prompt tokens of the request.
        cached_tokens: Number of those that were in the prefix cache.
        fresh: Whether the connection was new. The server may then have been restarted.
    """

    tokens: list[int]
    log_probabilities: list[float]
    prompt_tokens: int
    cached_tokens: int
    fresh: bool


def kv_cache_tokens(metrics: bytes) -> int | None:
    """Return the KV cache's capacity in tokens from a vLLM server's Prometheus metrics.

    None if the server does not report it.
    """
    tokens = sum(
        int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        for sample in _samples(metrics, "vllm:cache_config_info")
        if sample.labels.get("num_gpu_blocks", "None").isdecimal()
    )
    return tokens or None


def generated_tokens(metrics: bytes) -> int | None:
    """Return the number of tokens generated since the start, from the server's Prometheus metrics.

    None if the server does not report it.
    """
    counts = [int(sample.value) for sample in _samples(metrics, "vllm:generation_tokens_total")]
    return sum(counts) if counts else None


def _samples(metrics: bytes, name: str) -> list[Sample]:
    return [
        sample
        for family in text_string_to_metric_families(metrics.decode())
        for sample in family.samples
        if sample.name == name
    ]


class VllmClient:
    """Client of the vLLM server at a URL.

    Every method may raise `ServerUnavailableError`. It may raise `EngineError` if the server
    understood the request and refused it.

    Attributes:
        url: Its base URL, without /v1.
    """

    def __init__(self, url: str, request_seconds: float, *, sends_token: bool = True) -> None:
        """Configure the client without opening a connection.

        Args:
            url: Base URL, without /v1.
            request_seconds: Deadline in seconds of a request that generates nothing. The server
                then counts as stuck.
            sends_token: Whether requests have the token of this process's environment.
        """
        self._sends_token = sends_token
        self.url = url.rstrip("/")
        self._request_seconds = request_seconds
        self._session = PerLoopSession(partial(_connect, sends_token))

    async def healthy(self) -> None:
        """Return if the server is healthy, raise otherwise."""
        await self._get("/health", CONNECT_S)

    async def model(self) -> Model:
        """Return the model. Another kind of server may cause msgspec.DecodeError or IndexError."""
        return (await self._models())[0]

    async def kv_cache_tokens(self) -> int | None:
        """Return the KV cache's capacity in tokens, None if the server does not report it."""
        try:
            return kv_cache_tokens(await self._get("/metrics"))
        except (EngineError, ValueError):  # a gateway may block the route, or answer itself
            return None

    async def generated_tokens(self) -> int | None:
        """Return the number of tokens generated since the start, None if not reported."""
        try:
            return generated_tokens(await self._get("/metrics", CONNECT_S))
        except (EngineError, ValueError):
            return None

    async def workers(self) -> int:
        """Return the number of processes that hold weights."""
        return msgspec.json.decode(await self._get("/get_world_size"), type=_WorldSize).world_size

    async def weights_version(self) -> str:
        """Return the version of the weights set last, `INITIAL_WEIGHTS` before the first load."""
        return msgspec.json.decode(await self._get("/weight_info"), type=_WeightInfo).weight_version

    async def complete(self, body: bytes, seconds: float | None = None) -> Completion:
        """Send a request with one choice to /v1/completions.

        Args:
            seconds: Deadline. None: `Replica.complete` ends a request that is stuck.
        """
        connection = SimpleNamespace(fresh=False)
        answer = await self._ask("POST", "/v1/completions", body, seconds, connection)
        try:
            completion = msgspec.json.decode(answer, type=_Completion)
            [choice] = completion.choices
        except (msgspec.DecodeError, ValueError) as error:
            raise EngineError(
                f"{self.url} returned an invalid completion ({error}): {answer[:200]!r}"
            ) from error
        tokens = choice.token_ids or []
        sampled = [
            x for x in (choice.logprobs.token_logprobs if choice.logprobs else []) if x is not None
        ]
        if choice.finish_reason == "abort":
            raise ServerUnavailableError(f"{self.url} aborted a request")
        if not tokens or len(sampled) != len(tokens):
            raise EngineError(
                f"{self.url} returned {len(tokens)} token ids and {len(sampled)} "
                "log-probabilities. Use a version of vLLM that supports return_token_ids."
            )
        usage = completion.usage or _Usage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return Completion(tokens, sampled, usage.prompt_tokens, cached or 0, connection.fresh)

    async def log_probabilities(self, model: str, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities of all tokens but the first, at temperature 1."""
        request = {"model": model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0}
        body = msgspec.json.encode(request)
        answer = await self._ask("POST", "/v1/completions", body, self._request_seconds)
        try:
            [choice] = msgspec.json.decode(answer, type=_Completion).choices
            found = (choice.prompt_logprobs or [])[1:]
            return [
                (each or {})[token].logprob for token, each in zip(tokens[1:], found, strict=True)
            ]
        except (msgspec.DecodeError, ValueError, KeyError) as error:
            raise EngineError(
                f"{self.url} returned no log-probabilities of the prompt ({error!r}): "
                f"{answer[:200]!r}"
            ) from error

    async def text(self, model: str, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        body = msgspec.json.encode({"model": model, "tokens": tokens})
        answer = await self._ask("POST", "/detokenize", body, self._request_seconds)
        return msgspec.json.decode(answer, type=_Text).prompt

    async def check_log_probabilities(self, model: str) -> None:
        """Check that log-probabilities refer to the sampling distribution, not to raw logits.

        With one allowed token its probability must be 1. A server whose processes wait for a killed
        trainer never answers.
        """
        request = {
            "model": model,
            "prompt": [1],
            "max_tokens": 1,
            "allowed_token_ids": [2],
            "logprobs": 0,
            "return_token_ids": True,
        }
        answer = await self.complete(msgspec.json.encode(request), LOAD_S)
        if answer.log_probabilities != [0.0]:
            raise EngineError(
                f"the log-probabilities of {self.url} are not those of its sampling distribution. "
                "Start it with --logprobs-mode processed_logprobs."
            )

    async def pause(self, keeps: str | None = None) -> None:
        """Pause until `resume`.

        Args:
            keeps: Version of the weights whose running requests are frozen until `resume`. If the
                server has other weights, its running requests are aborted. None: they are finished
                first.
        """
        if keeps is None:
            await self._post("/pause?mode=wait", {})
            return
        await self._post("/pause?mode=keep", {})
        if await self.weights_version() != keeps:
            await self._post("/pause?mode=abort", {})

    async def resume(self) -> None:
        """Resume generation."""
        await self._post("/resume", {})

    async def resume_if_paused(self) -> None:
        """Resume the server in case it was paused. Errors are ignored.

        A server that cannot be paused has no such route.
        """
        with suppress(ServerUnavailableError, EngineError):
            await self._ask("POST", "/resume", b"{}", CONNECT_S)

    async def set_weights_version(self, version: str) -> None:
        """Drop the caches of the former weights and set the version of the new ones.

        The caches of frozen requests are computed again when they continue.
        """
        await self._post("/reset_prefix_cache?reset_running_requests=true", {})
        await self._post("/update_weight_version", {"new_version": version})

    async def read_adapter(self, folder: Path, names: Sequence[str]) -> None:
        """Load a LoRA adapter beside those that running requests use.

        Args:
            folder: The adapter in peft's format.
            names: Names of the adapters to keep. The last one is that of the new adapter, and the
                version of the weights. Requests name it as their model.
        """
        try:
            for model in await self._models():
                if model.parent is not None and model.id not in names:
                    await self._post("/v1/unload_lora_adapter", {"lora_name": model.id})
            await self._post(
                "/v1/load_lora_adapter", {"lora_name": names[-1], "lora_path": str(folder)}
            )
            await self._post("/update_weight_version", {"new_version": names[-1]})
        except EngineError as error:
            raise EngineError(
                f"{error}. To load adapters, start the server with VLLM_SERVER_DEV_MODE=1, "
                "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
            ) from error

    async def read_weights(self, folder: Path, version: str, keeps: str | None = None) -> None:
        """Pause the server, load the weights in `folder` and resume generation.

        A cancelled call also resumes the server.

        Args:
            folder: All weights.
            version: Their version.
            keeps: Version of the weights whose running requests continue, as in `pause`.
        """
        try:
            await self.pause(keeps)
            await self._post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
            )
            await self.set_weights_version(version)
        except EngineError as error:
            raise EngineError(
                f"{error}. To load weights, start the server with VLLM_SERVER_DEV_MODE=1."
            ) from error
        except asyncio.CancelledError:
            await self.resume_if_paused()
            raise
        await self.resume()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _models(self) -> list[Model]:
        return msgspec.json.decode(await self._get("/v1/models"), type=_Models).data

    async def _get(self, path: str, seconds: float | None = None) -> bytes:
        return await self._ask("GET", path, b"", seconds or self._request_seconds)

    async def _post(self, path: str, content: dict[str, Any]) -> None:
        await self._ask("POST", path, msgspec.json.encode(content), LOAD_S)

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes,
        seconds: float | None,
        context: SimpleNamespace | None = None,
    ) -> bytes:
        """Return the body of an answer with status 200."""
        session = await self._session.get()
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        try:
            async with session.request(
                method,
                self.url + path,
                data=body,
                timeout=timeout,
                trace_request_ctx=context,
                allow_redirects=False,
            ) as response:
                answer = await response.read()
                status = response.status
        except aiohttp.ConnectionTimeoutError as error:
            raise ServerUnavailableError(f"{self.url} is not reachable: {error}") from error
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"{self.url}{path} did not answer within {seconds:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise ServerUnavailableError(f"{self.url} is not reachable: {error}") from error
        if status == 200:
            return answer
        problem = (
            f"{self.url}{path} returned status {status}: {answer[:300].decode(errors='replace')}"
        )
        if status >= 500 or status == 429:
            raise ServerUnavailableError(problem)
        rejected = EngineError(
            f"{problem}. Set {VARIABLE} to the token of this server."
            if status == 401 and self._sends_token
            else problem
        )
        rejected.status = status
        raise rejected


def _connect(sends_token: bool) -> aiohttp.ClientSession:
    """Create a session without a connection limit.

    A new connection sets `fresh` in the context of its request.
    """
    trace = aiohttp.TraceConfig()

    async def connected(
        _: aiohttp.ClientSession,
        context: SimpleNamespace,
        __: aiohttp.TraceConnectionCreateEndParams,
    ) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.fresh = True

    trace.on_connection_create_end.append(connected)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
    headers = {"content-type": "application/json"} | (authorization() if sends_token else {})
    return aiohttp.ClientSession(connector=connector, trace_configs=[trace], headers=headers)
