"""How cloning lays out its batches, and what attention does before it has learned anything."""

from __future__ import annotations

from random import Random

import pytest
import torch
from pydantic import ValidationError

from configs.experiment import StarterPolicy
from tasks.starter import cloning, first_weights, starting_model


def test_batches_hold_every_example_once_and_few_tokens() -> None:
    random = Random(0)
    examples = [cloning.Example([0] * random.randint(2, 900), []) for _ in range(100)]
    found = list(cloning.batches(examples, 1))
    assert sorted(id(example) for batch in found for example in batch) == sorted(id(example) for example in examples)
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(len(example.tokens) for example in batch) <= cloning.BATCH_TOKENS


WORDS = "abcdefghijklmno"
TOKENIZER = starting_model.build_tokenizer([f" {one}{two}" for one in WORDS for two in WORDS])


def test_heads_of_the_first_layer_begin_by_looking_back() -> None:
    model = starting_model.build_model(StarterPolicy(hidden_size=128, layers=1, heads=4), TOKENIZER, 0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        tokens = torch.randint(len(TOKENIZER), (1, 40), generator=torch.Generator().manual_seed(0))
        attention = model(tokens, output_attentions=True).attentions[0][0]
    for head, distance in enumerate(first_weights.PREVIOUS_TOKENS):
        looked_at = attention[head, 10:].argmax(-1)
        assert (looked_at == torch.arange(10, 40) - distance).all()


def test_a_model_that_begins_by_copying_goes_on_as_the_text_went_on_before() -> None:
    once = torch.randint(len(TOKENIZER), (8, 60), generator=torch.Generator().manual_seed(0))

    def foretold(**starter: object) -> float:
        model = starting_model.build_model(StarterPolicy.model_validate(starter), TOKENIZER, 0)
        with torch.no_grad():
            likeliest = model(torch.cat([once, once], 1)).logits.argmax(-1)
        return float((likeliest[:, 60:-1] == once[:, 1:]).float().mean())

    assert foretold() < 0.05
    assert foretold(first_weights="copy") > 0.3
    assert foretold(first_weights="copy", hidden_size=192, heads=6) > 0.4
    assert foretold(first_weights="copy", hidden_size=64, heads=2) > 0.05


def test_copying_asks_for_an_even_number_of_heads() -> None:
    with pytest.raises(ValidationError, match="heads"):
        StarterPolicy(first_weights="copy", heads=1)


def test_a_starter_that_looks_back_is_written_as_before_there_was_another() -> None:
    assert "first_weights" not in StarterPolicy().model_dump(mode="json")
    assert StarterPolicy(first_weights="copy").model_dump(mode="json")["first_weights"] == "copy"
