"""A teacher on a vLLM server: log-probabilities of given tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from transformers import PreTrainedTokenizerBase

from tasks.inference.engine import EngineError
from tasks.inference.event_loop import in_event_loop
from tasks.inference.vllm_client import Model, ServerUnavailableError, VllmClient

ATTEMPTS, PAUSE_S = 5, 5.0
CONCURRENT = 32
"""Largest number of requests at once, of each trainer process."""


class TeacherServer:
    """Client of the teacher's server. It sends no token."""

    def __init__(
        self, url: str, tokenizer: PreTrainedTokenizerBase, length: int, request_seconds: float
    ) -> None:
        """Check that the server is usable.

        Args:
            url: Base URL of the server, without /v1.
            tokenizer: The policy's tokenizer.
            length: Largest number of tokens of a row.
            request_seconds: Deadline of a request, in seconds.

        Raises:
            EngineError: The server does not answer, has a shorter context, or another vocabulary
                than the policy.
        """
        self._client = VllmClient(url, request_seconds, sends_token=False)
        self._request_seconds = request_seconds
        self._model = in_event_loop(self._check(tokenizer, length))

    def longest_seconds(self, rows: int) -> float:
        """Return the most seconds that `score` takes for a number of rows until it gives up."""
        return -(-rows // CONCURRENT) * ATTEMPTS * (self._request_seconds + PAUSE_S)

    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probabilities of all tokens of each row but its first, at temperature 1.

        Raises:
            EngineError: The server refuses a request, or does not answer repeated ones.
        """
        return in_event_loop(self._score(rows))

    async def _score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        free = asyncio.Semaphore(CONCURRENT)

        async def one(row: Sequence[int]) -> list[float]:
            async with free:
                for attempt in range(ATTEMPTS):
                    try:
                        return await self._client.log_probabilities(self._model.id, row)
                    except ServerUnavailableError as error:
                        if attempt == ATTEMPTS - 1:
                            raise EngineError(f"algorithm.teacher: {error}") from error
                    await asyncio.sleep(PAUSE_S)
            raise AssertionError("unreachable")

        return list(await asyncio.gather(*map(one, rows)))

    async def _check(self, tokenizer: PreTrainedTokenizerBase, length: int) -> Model:
        url = self._client.url
        tokens = list(range(len(tokenizer)))
        try:
            model = await self._client.model()
            text = await self._client.text(model.id, tokens)
        except (ServerUnavailableError, EngineError, msgspec.DecodeError, IndexError) as error:
            raise EngineError(
                f"algorithm.teacher: {url} is not a vLLM server without a key: {error}"
            ) from error
        if model.max_model_len is not None and model.max_model_len <= length:
            raise EngineError(
                f"algorithm.teacher: {url} has a context of {model.max_model_len} tokens, but "
                f"rollout.trajectory_tokens is {length}. Start it with --max-model-len {length + 1}"
                " or more."
            )
        if text != tokenizer.decode(tokens):
            raise EngineError(
                f"algorithm.teacher: {model.id} on {url} has another vocabulary than the policy. "
                "Choose a teacher of the same model family."
            )
        return model
