"""Plain transformers as an inference engine for models that vLLM does not support.

It is correct and slow. Waiting requests run together as one padded batch from beginning to end.
Requests that arrive meanwhile form the next batch. The event loop runs between two decode steps, so
environment answers that arrive during a batch are not delayed further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from configs.experiment import Lora
from tasks.inference.adapter import IN_MODEL, Adapter, place_adapter
from tasks.inference.decode_graph import DecodeGraphs, decodes_statically
from tasks.inference.engine import EngineError, Generation, Sampling
from tasks.inference.fused_layers import fuse_layers

OUT_OF_MEMORY = ". Set rollout.max_num_seqs, or a smaller value of it"
ARRIVAL_S = 0.02
"""A batch starts when no request has arrived for this long."""


@dataclass(slots=True)
class _Request:
    tokens: list[int]
    sampling: Sampling
    answer: asyncio.Future[Generation]


class TransformersEngine:
    """An `Engine` that runs a transformers model in this process, on the GPU if there is one."""

    name = "transformers"
    out_of_process = False

    def __init__(
        self,
        model: str,
        *,
        context_length: int,
        max_num_seqs: int,
        dtype: str,
        lora: Lora | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: Hugging Face name or folder.
            context_length: Maximum tokens of prompt and output together.
            max_num_seqs: Maximum number of requests in a batch.
            dtype: "float32", "bfloat16" or "float16".
            lora: Adapters that `load_adapter` will load.
        """
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())
        else:
            self._device = torch.device("cpu")
        loaded = (
            AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
            .to(self._device)
            .eval()
        )
        if lora is not None:
            place_adapter(loaded, lora)
            for name in [name for name, _ in loaded.named_parameters() if name.endswith(IN_MODEL)]:
                layer = loaded.get_submodule(name.removesuffix(".weight"))
                layer.weight = torch.nn.Parameter(
                    torch.zeros(layer.weight.shape, dtype=loaded.dtype, device=self._device)
                )
        self._model = fuse_layers(loaded, loaded.dtype)
        self._graphs: DecodeGraphs | None = None
        if self._device.type == "cuda" and decodes_statically(loaded):
            self._graphs = DecodeGraphs(loaded)
        self.context_length = context_length
        self.kv_cache_tokens: int | None = None  # no cache is kept between two requests
        self._max_num_seqs = max_num_seqs
        self._waiting: list[_Request] = []
        self._pump: asyncio.Task[None] | None = None
        self.prompt_tokens = self.cached_tokens = self.policy_version = self.progress = 0

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        """Continue `tokens`, as in `Engine.generate`."""
        if len(tokens) + 1 > self.context_length:
            raise EngineError(
                f"a request of {len(tokens)} tokens does not fit into a context of "
                f"{self.context_length} tokens"
            )
        request = _Request(list(tokens), sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run_until_idle())
        return await request.answer

    async def _run_until_idle(self) -> None:
        while self._waiting:
            # A batch of few rows takes as long as one of many, so it waits while others arrive.
            before = 0
            while before < len(self._waiting) < self._max_num_seqs:
                before = len(self._waiting)
                await asyncio.sleep(ARRIVAL_S)
            batch = [request for request in self._waiting if not request.answer.done()][
                : self._max_num_seqs
            ]
            self._waiting = [
                request
                for request in self._waiting
                if request not in batch and not request.answer.done()
            ]
            if not batch:
                continue
            answers = [Generation([], [], self.policy_version) for _ in batch]
            try:
                for _ in self._continue(batch, answers):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                for request in batch:
                    request.answer.cancel()
                raise
            except Exception as problem:  # noqa: BLE001 - every error must fail the waiting episodes
                hint = OUT_OF_MEMORY if isinstance(problem, torch.OutOfMemoryError) else ""
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(
                            EngineError(f"transformers failed during generation: {problem!r}{hint}")
                        )
                continue
            for request, answer in zip(batch, answers, strict=True):
                self.prompt_tokens += len(request.tokens)
                if not request.answer.done():
                    request.answer.set_result(answer)

    # of a generator, it is off while the event loop runs
    @torch.inference_mode()
    def _continue(self, batch: Sequence[_Request], written: Sequence[Generation]) -> Iterator[None]:
        """Sample all requests of a batch until each reaches a stop token or its token budget.

        A cancelled request is not continued.

        Args:
            written: Filled with the answers.

        Yields:
            After each step of the model.
        """
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # the current device is set per thread
        widest = max(len(request.tokens) for request in batch)
        rows = [[0] * (widest - len(request.tokens)) + request.tokens for request in batch]
        ids = torch.from_numpy(np.array(rows)).to(self._device)
        padding = torch.tensor([[widest - len(request.tokens)] for request in batch])
        mask = (torch.arange(widest) >= padding).long().to(self._device)
        temperatures = torch.tensor([r.sampling.temperature for r in batch], device=self._device)
        room = [min(r.sampling.max_tokens, self.context_length - len(r.tokens)) for r in batch]
        draws = torch.stack([_draws(r.sampling.seed, max(room)) for r in batch]).to(self._device)
        open_rows = set(range(len(batch)))
        cache = DynamicCache(config=self._model.config)
        logits = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self.progress += 1
        decode = self._decoding(cache, mask, max(room))
        for each in draws.T:
            yield
            open_rows -= {row for row in open_rows if batch[row].answer.done()}
            if not open_rows:
                break
            tokens, log_probabilities = sample(logits.float(), temperatures, each)
            for row, (token, log_probability) in enumerate(
                zip(tokens.tolist(), log_probabilities.tolist(), strict=True)
            ):
                if row not in open_rows:
                    continue
                written[row].tokens.append(token)
                written[row].log_probabilities.append(log_probability)
                stops = token in batch[row].sampling.stop_tokens
                if stops or len(written[row].tokens) >= room[row]:
                    open_rows.discard(row)
            if not open_rows:
                break
            logits = decode(tokens)
            self.progress += 1

    def _decoding(
        self, cache: DynamicCache, mask: torch.Tensor, new_tokens: int
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the decode step of a batch, as in `DecodeGraphs.begin`."""
        if self._graphs and (decode := self._graphs.begin(cache, mask, new_tokens)):
            return decode
        return partial(_decode, self._model, cache, [mask])

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace the adapter, as in `AdapterEngine.load_adapter`."""
        self.load(adapter.weights.items())

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights, as in `Engine.load`."""
        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                own[name].copy_(tensor)

    def close(self) -> None:
        """Free the model, as in `Engine.close`. Unanswered requests are cancelled."""
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        for request in self._waiting:
            request.answer.cancel()
        self._model = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _draws(seed: int, number: int) -> torch.Tensor:
    """Return uniform random numbers from [0, 1) in float64, shape (number,)."""
    return torch.rand(number, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _decode(
    model: Any, cache: DynamicCache, masks: list[torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Return the next logits after some tokens. `masks` holds the mask so far and is extended."""
    masks[0] = mask = torch.cat([masks[0], masks[0].new_ones(len(tokens), 1)], dim=1)
    logits: torch.Tensor = model(
        input_ids=tokens[:, None],
        attention_mask=mask,
        position_ids=mask.sum(1, keepdim=True) - 1,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits[:, -1]


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample the next token of each row by inversion of its distribution function.

    Args:
        logits: Logits of the next tokens, shape (B, vocabulary).
        temperatures: Sampling temperatures, shape (B,). Rows at 0 take the likeliest token.
        draws: Uniform random numbers from [0, 1) in float64, shape (B,).

    Returns:
        The tokens and their log-probabilities under the sampling distribution (that of temperature
        1 for a row at 0); each of shape (B,).
    """
    greedy = temperatures == 0
    scaled = logits / temperatures.masked_fill(greedy, 1.0)[:, None]
    log_probabilities = torch.log_softmax(scaled, dim=-1)
    shares = log_probabilities.double().exp().cumsum(-1)
    points = draws.to(shares.device)[:, None] * shares[:, -1:]
    drawn = torch.searchsorted(shares, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, log_probabilities.gather(-1, tokens[:, None])[:, 0]
