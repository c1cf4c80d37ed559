"""Decode steps of a padded batch as CUDA graphs.

A small model's decode step is some thousand short kernels. Starting them one by one from Python
takes ten times as long as running them. A graph starts them all at once. Its tensors keep their
places and shapes, so the rows and the width of a batch are rounded up to powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache, StaticCache

GROUPED = "grouped_heads"
"""Name of our attention of a decode step in transformers."""
LEAST_WIDTH = 256
WARM_UPS = 2
"""Steps before the capture. They let libraries allocate what a graph may not."""
MEMORY_SHARE = 1 / 8
"""Most of a GPU's memory for the cache of the graphs."""


def decodes_statically(model: Any) -> bool:
    """Return whether all layers of a model are plain attention, which a static cache supports."""
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ("full_attention",))
    return bool(model._can_compile_fullgraph and kinds == {"full_attention"})


class DecodeGraphs:
    """The decode steps of a model for each shape that occurred. They share one key-value cache."""

    def __init__(self, model: Any) -> None:
        """Use a model for which `decodes_statically` holds. Its weights may change in place."""
        self._model = model
        self._steps: dict[tuple[int, int], _Step] = {}
        self._memory: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(
        self, cache: DynamicCache, mask: torch.Tensor, new_tokens: int
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Continue a batch after its prompts. Returns None if it needs too much memory.

        Args:
            cache: Keys and values of the prompts.
            mask: 1 on the prompts' tokens, 0 on their padding on the left, shape (B, T).
            new_tokens: Most tokens that follow.

        Returns:
            A function from the last tokens, shape (B,), to the logits of the next ones, shape (B,
            vocabulary). The next call of either overwrites the result.
        """
        rows = _power_of_two(len(mask))
        width = max(LEAST_WIDTH, _power_of_two(mask.shape[1] + new_tokens))
        step = self._steps.get((rows, width))
        if step is None:
            if not _fits(cache, rows * width):
                return None
            self._reserve(cache, rows * width)
            # The graphs share their working memory. It ends with the last graph that uses it.
            pool = next((each.pool for each in self._steps.values()), None)
            step = _Step(self._model, self._memory, pool, cache, rows, width)
            self._steps[rows, width] = step
        step.begin(cache, mask)
        return lambda tokens: step.logits(tokens)[: len(mask)]

    def _reserve(self, cache: DynamicCache, places: int) -> None:
        """Provide memory for a cache of so many places. Graphs in smaller memory are dropped."""
        for i, layer in enumerate(cache.layers):
            keys, values = layer.keys, layer.values
            needed = [each.shape[1] * each.shape[3] * places for each in (keys, values)]
            if i < len(self._memory) and len(self._memory[i][0]) >= needed[0]:
                continue
            self._steps.clear()
            del self._memory[i:]
            self._memory.append((keys.new_zeros(needed[0]), values.new_zeros(needed[1])))


class _Step:
    """The decode step of one shape. Without a GPU it runs as usual."""

    def __init__(
        self,
        model: Any,
        memory: list[tuple[torch.Tensor, torch.Tensor]],
        pool: Any,
        like: DynamicCache,
        rows: int,
        width: int,
    ) -> None:
        self._model = model
        self._cache = StaticCache(model.config, max_cache_len=width)
        for layer, filled, (keys, values) in zip(
            self._cache.layers, like.layers, memory, strict=True
        ):
            layer.lazy_initialization(filled.keys[:0], filled.values[:0])
            for name, flat, shape in (
                ("keys", keys, filled.keys.shape),
                ("values", values, filled.values.shape),
            ):
                places = flat[: rows * shape[1] * width * shape[3]]
                setattr(layer, name, places.view(rows, shape[1], width, shape[3]))
        device = like.layers[0].keys.device
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._positions = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._mask = torch.zeros(rows, 1, 1, width, dtype=torch.bool, device=device)
        self._logits: torch.Tensor
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    self._run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the trainer may use the GPU during the capture.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._run()
            self._graph = graph

    @property
    def pool(self) -> Any:
        """The working memory of the graph, or None without a GPU."""
        return None if self._graph is None else self._graph.pool()

    def begin(self, cache: DynamicCache, mask: torch.Tensor) -> None:
        """Copy the prompts' keys and values. Rows without a prompt attend to their own tokens."""
        rows, length = mask.shape
        for layer, filled in zip(self._cache.layers, cache.layers, strict=True):
            layer.keys[:rows, :, :length] = filled.keys
            layer.values[:rows, :, :length] = filled.values
            layer.cumulative_length.fill_(length)
        self._place.fill_(length)
        self._positions.zero_()
        self._positions[:rows] = mask.sum(1, keepdim=True)
        self._mask.zero_()
        self._mask[:rows, 0, 0, :length] = mask.bool()

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits after some tokens, shape (rows, vocabulary)."""
        self._tokens[: len(tokens), 0] = tokens
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        return self._logits

    def _run(self) -> None:
        self._mask.index_fill_(3, self._place, True)
        config = self._model.config
        before = config._attn_implementation
        if before == "sdpa":
            config._attn_implementation = GROUPED
        try:
            self._logits = self._model(
                input_ids=self._tokens,
                attention_mask=self._mask,
                position_ids=self._positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        finally:
            config._attn_implementation = before
        self._place += 1
        self._positions += 1


def grouped_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_named: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token for each row, for transformers' `AttentionInterface`.

    Heads that share keys become the queries of one head. With a mask, transformers would copy the
    keys and values for each head.

    Args:
        query: Shape (B, heads, 1, width).
        key: Shape (B, key heads, T, width).
        value: Shape (B, key heads, T, width).
        attention_mask: True where a row attends, shape (B, 1, 1, T).
        scaling: Factor of the scores.

    Returns:
        Shape (B, 1, heads, width), and None.
    """
    rows, heads, _, width = query.shape
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], width)
    attended = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(rows, 1, heads, width), None


AttentionInterface.register(GROUPED, grouped_attention)


def _fits(cache: DynamicCache, places: int) -> bool:
    """Return whether a cache of so many places keeps within its share of the GPU's memory."""
    device = cache.layers[0].keys.device
    if device.type != "cuda":
        return True
    elements = sum(
        each.shape[1] * each.shape[3]
        for layer in cache.layers
        for each in (layer.keys, layer.values)
    )
    needed: int = places * elements * cache.layers[0].keys.element_size()
    total: int = torch.cuda.get_device_properties(device).total_memory
    return needed <= total * MEMORY_SHARE


def _power_of_two(least: int) -> int:
    """Return the smallest power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()
