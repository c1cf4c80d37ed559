"""The weights of a model under the names of its files, which vLLM reads.

transformers names some weights differently than their files do, and joins others: the experts of a
mixture are one tensor in memory and one for each expert in the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from transformers.core_model_loading import revert_weight_conversion

from tasks.inference.engine import EngineError
from tasks.inference.weight_stream import WeightShape, WeightStream


def stored_weights(model: Any, weights: WeightStream) -> WeightStream:
    """Return the weights as `model.save_pretrained` writes them, one parameter at a time.

    Args:
        model: The unwrapped model of transformers.
        weights: Its parameters by their name in the model.

    Raises:
        EngineError: A weight in the files is made of several parameters.
    """
    empty = {
        each.name: torch.empty(each.shape, dtype=each.dtype, device="meta")
        for each in weights.shapes
    }
    shapes = [
        shape for name, value in empty.items() for shape in _shapes(_stored(model, name, value))
    ]
    if set(shapes) != set(_shapes(revert_weight_conversion(model, empty))):
        raise EngineError(
            f"the files of {type(model).__name__} join weights that the trainer keeps apart. Set "
            "rollout.engine: transformers"
        )

    def renamed() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in weights:
            yield from _stored(model, name, value).items()

    return WeightStream(shapes, renamed())


def _stored(model: Any, name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    stored = cast(dict[str, torch.Tensor], revert_weight_conversion(model, {name: value}))
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def _shapes(stored: dict[str, torch.Tensor]) -> Sequence[WeightShape]:
    return [WeightShape(name, each.dtype, tuple(each.shape)) for name, each in stored.items()]
