"""Tests of weight streams: their shapes, and draining them to gather all weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from configs.experiment import Lora
from tasks.inference.weight_stream import WeightShape, WeightStream
from tasks.training.lora import add_lora, computed_weights


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_shapes_are_those_of_the_weights(
    lora: Lora | None, dtype: torch.dtype | None, policy: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    names = [name for name, _ in model.named_parameters()]
    if lora is not None:
        add_lora(model, lora, seed=0)
    stream = computed_weights(model, dtype)
    weights = list(stream)
    assert [each.name for each in stream.shapes] == [name for name, _ in weights] == names
    assert [(each.dtype, each.shape) for each in stream.shapes] == [
        (value.dtype, tuple(value.shape)) for _, value in weights
    ]
    assert stream.nbytes == sum(value.nbytes for _, value in weights)


def test_drain_gathers_the_rest() -> None:
    gathered = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(4):
            gathered.append(number)
            yield str(number), torch.zeros(1)

    stream = WeightStream(
        [WeightShape(str(number), torch.float32, (1,)) for number in range(4)], weights()
    )
    next(iter(stream))
    stream.drain()
    assert gathered == [0, 1, 2, 3]
