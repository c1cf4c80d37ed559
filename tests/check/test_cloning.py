"""Tests of behaviour cloning's batches and of the initial attention heads."""

from __future__ import annotations

from random import Random

import pytest
import torch
from pydantic import ValidationError

from configs.experiment import StarterPolicy
from tasks.starter import attention_init, cloning, starting_model


def test_batches_contain_every_example_once_within_the_token_limit() -> None:
    random = Random(0)
    examples = [cloning.Example([0] * random.randint(2, 900), []) for _ in range(100)]
    found = list(cloning.batches(examples, 1))
    assert sorted(id(example) for batch in found for example in batch) == sorted(
        id(example) for example in examples
    )
    for batch in found:
        assert (
            len(batch) == 1
            or len(batch) * max(len(example.tokens) for example in batch) <= cloning.BATCH_TOKENS
        )


WORDS = "abcdefghijklmno"
TOKENIZER = starting_model.build_tokenizer([f" {one}{two}" for one in WORDS for two in WORDS])


def test_heads_of_the_first_layer_attend_to_previous_tokens() -> None:
    model = starting_model.build_model(
        StarterPolicy(hidden_size=128, layers=1, heads=4), TOKENIZER, 0
    )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        tokens = torch.randint(len(TOKENIZER), (1, 40), generator=torch.Generator().manual_seed(0))
        attention = model(tokens, output_attentions=True).attentions[0][0]
    for head, distance in enumerate(attention_init.PREVIOUS_TOKENS):
        looked_at = attention[head, 10:].argmax(-1)
        assert (looked_at == torch.arange(10, 40) - distance).all()


def test_induction_heads_repeat_the_continuation_of_an_earlier_occurrence() -> None:
    once = torch.randint(len(TOKENIZER), (8, 60), generator=torch.Generator().manual_seed(0))

    def repeated(**starter: object) -> float:
        model = starting_model.build_model(StarterPolicy.model_validate(starter), TOKENIZER, 0)
        with torch.no_grad():
            likeliest = model(torch.cat([once, once], 1)).logits.argmax(-1)
        return float((likeliest[:, 60:-1] == once[:, 1:]).float().mean())

    assert repeated() < 0.05
    assert repeated(attention_init="induction") > 0.3
    assert repeated(attention_init="induction", hidden_size=192, heads=6) > 0.4
    assert repeated(attention_init="induction", hidden_size=64, heads=2) > 0.05


def test_induction_heads_require_an_even_number_of_heads() -> None:
    with pytest.raises(ValidationError, match=r"heads \(1\).*attention_init"):
        StarterPolicy(attention_init="induction", heads=1)
