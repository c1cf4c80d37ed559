"""How cloning lays out its batches, and what attention does before it has learned anything."""

from __future__ import annotations

from random import Random

import torch

from configs.experiment import StarterPolicy
from tasks.starter import cloning, starting_model


def test_batches_hold_every_example_once_and_few_tokens() -> None:
    random = Random(0)
    examples = [cloning.Example([0] * random.randint(2, 900), []) for _ in range(100)]
    found = list(cloning.batches(examples, 1))
    assert sorted(id(example) for batch in found for example in batch) == sorted(id(example) for example in examples)
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(len(example.tokens) for example in batch) <= cloning.BATCH_TOKENS


def test_heads_of_the_first_layer_begin_by_looking_back() -> None:
    tokenizer = starting_model.build_tokenizer(["some words of a world"])
    model = starting_model.build_model(StarterPolicy(hidden_size=128, layers=1, heads=4), tokenizer, 0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        tokens = torch.randint(len(tokenizer), (1, 40), generator=torch.Generator().manual_seed(0))
        attention = model(tokens, output_attentions=True).attentions[0][0]
    for head, distance in enumerate(starting_model.PREVIOUS_TOKENS):
        looked_at = attention[head, 10:].argmax(-1)
        assert (looked_at == torch.arange(10, 40) - distance).all()
