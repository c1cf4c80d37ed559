"""Tests of the starter policy: reproducible builds, the cloning loss, and its tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Tokenizer

from configs.experiment import Policy, StarterPolicy
from environments.registry import load_world
from tasks.agents.chat_format import ChatFormat
from tasks.rollout.trajectory import Trajectory, Turn
from tasks.starter import cloning
from tasks.starter.demonstrations import Demonstration, Demonstrator
from tasks.starter.starter_policy import (
    MANIFEST,
    StarterReport,
    build_starter_policy,
    find_starter_policy,
)
from tests.support.processes import run_python

TINY = StarterPolicy(hidden_size=32, layers=1, heads=1, tokens=3_000, learning_rate=1e-2)
BARE = Policy(starter=TINY, action_format="bare")


def bare(**changes: float | str | tuple[float, ...]) -> Policy:
    """Return the policy with changed fields of `policy.starter`."""
    return BARE.model_copy(update={"starter": TINY.model_copy(update=changes)})


build = partial(build_starter_policy, BARE, "textcraft")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StarterReport:
    return build(0, tmp_path_factory.mktemp("starters"))


@pytest.fixture(scope="module")
def tokenizer(made: StarterReport) -> Qwen2Tokenizer:
    return AutoTokenizer.from_pretrained(made.path)


@pytest.fixture(scope="module")
def played() -> list[Demonstration]:
    world = load_world("textcraft")
    demonstrator = Demonstrator(world, list(world.tasks("train"))[::10], 3, 0.3)
    return [demonstrator.play(number) for number in range(30)]


def files(report: StarterReport) -> dict[str, bytes]:
    """Return the contents of all files but the manifest, which also records the duration."""
    return {file.name: file.read_bytes() for file in report.path.iterdir() if file.name != MANIFEST}


def test_same_seed_gives_the_same_bytes_and_another_seed_gives_others(
    made: StarterReport, tmp_path: Path
) -> None:
    torch.manual_seed(17)  # earlier random draws have no effect
    again, other = build(0, tmp_path), build(1, tmp_path)
    assert files(again) == files(made)
    assert files(other)["model.safetensors"] != files(made)["model.safetensors"]


def test_loss_falls(tmp_path: Path) -> None:
    longer = build_starter_policy(bare(tokens=20_000), "textcraft", 0, tmp_path)
    assert longer.last_loss < 0.7 * longer.first_loss


def test_excerpts_precede_full_demonstrations_and_add_to_the_tokens(
    made: StarterReport, tmp_path: Path
) -> None:
    also = build_starter_policy(bare(excerpts=(0.2, 0.5)), "textcraft", 0, tmp_path)
    assert (
        2 * made.tokens < also.tokens < 4 * made.tokens
    )  # a goal is one line, so an excerpt leaves out little
    assert also.demonstrations == made.demonstrations
    assert files(also)["tokenizer.json"] == files(made)["tokenizer.json"]
    assert files(also)["model.safetensors"] != files(made)["model.safetensors"]


def test_second_call_finds_the_starter_policy_without_torch(made: StarterReport) -> None:
    program = (
        "import sys; from pathlib import Path; from configs.experiment import Policy\n"
        "from tasks.starter.starter_policy import build_starter_policy\n"
        f"policy = Policy.model_validate_json({BARE.model_dump_json()!r})\n"
        f"report = build_starter_policy(policy, 'textcraft', 0, Path({str(made.path.parent)!r}))\n"
        "print(report.found, report.path, 'torch' in sys.modules)"
    )
    assert run_python(program).split() == ["True", str(made.path), "False"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"damaged")])
def test_damaged_policy_is_built_again(
    made: StarterReport, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    report = build(0, tmp_path)
    damage(report.path / "model.safetensors")
    assert find_starter_policy(BARE, "textcraft", 0, tmp_path) is None
    assert not build(0, tmp_path).found
    assert files(report) == files(made)


def test_only_one_of_two_concurrent_calls_builds(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: build(0, tmp_path), range(2)))
    assert sorted(report.found for report in reports) == [False, True]


def test_failed_build_leaves_no_folder(tmp_path: Path) -> None:
    def fail(what: str, done: int, total: int, loss: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_starter_policy(BARE, "textcraft", 0, tmp_path, fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_unknown_task_list_is_refused_by_field_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.starter\.tasks.*'nosuch'"):
        build_starter_policy(bare(tasks="nosuch"), "textcraft", 0, tmp_path)


def test_model_loads_by_path_and_predicts(made: StarterReport, tokenizer: Qwen2Tokenizer) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.path)
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    assert model.config.vocab_size == len(tokenizer) == made.vocabulary
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.num_parameters() == made.parameters
    prompt = ChatFormat(tokenizer, "bare", None).prompt("Goal: craft stick.")
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits
    assert logits.isfinite().all()


def test_words_of_the_world_are_single_tokens(tokenizer: Qwen2Tokenizer) -> None:
    environment = load_world("textcraft").create()
    prompt = environment.reset(load_world("textcraft").tasks("train")[0])
    environment.close()
    tokens = tokenizer.encode(prompt)
    assert tokenizer.decode(tokens) == prompt
    for text in (" acacia", " planks", " 4", "craft", " trapdoor", "<|assistant|>", "<|end|>"):
        assert len(tokenizer.encode(text)) == 1, text


@given(text=st.text(max_size=60))
@settings(max_examples=50)
def test_tokenizer_round_trip_of_any_text(tokenizer: Qwen2Tokenizer, text: str) -> None:
    normal = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(normal)) == normal


def test_example_has_the_token_layout_of_the_collector(
    tokenizer: Qwen2Tokenizer, played: list[Demonstration]
) -> None:
    dialogue = ChatFormat(tokenizer, "bare", None)
    for demonstration in played:
        trajectory = Trajectory("textcraft", demonstration.task, 0, 0, 0, 99, 0, "oracle")
        trajectory.prompt = dialogue.prompt(demonstration.first_observation)
        for number, exchange in enumerate(demonstration.exchanges, start=1):
            message = dialogue.message(exchange.action)
            assert dialogue.action_in(dialogue.text(message)) == exchange.action
            turn = Turn(message, [0.0] * len(message), exchange.action, exchange.observation)
            if number < len(demonstration.exchanges):
                turn.observation_tokens = dialogue.reply(exchange.observation, message)
            trajectory.turns.append(turn)
        example = cloning.to_example(demonstration, dialogue)
        assert example.tokens == [*trajectory.prompt, *trajectory.completion]
        assert all(
            written or not learned
            for written, learned in zip(
                [0] * len(trajectory.prompt) + trajectory.policy_mask, example.learned, strict=True
            )
        )


def test_loss_covers_oracle_tokens_only(
    tokenizer: Qwen2Tokenizer, played: list[Demonstration]
) -> None:
    dialogue = ChatFormat(tokenizer, "bare", None)
    assert any(
        not exchange.by_oracle for demonstration in played for exchange in demonstration.exchanges
    )
    for demonstration in played:
        example = cloning.to_example(demonstration, dialogue)
        learned = [
            token for token, counts in zip(example.tokens, example.learned, strict=True) if counts
        ]
        assert learned == [
            token
            for exchange in demonstration.exchanges
            if exchange.by_oracle
            for token in dialogue.message(exchange.action)
        ]


def test_react_starter_policy_learns_thoughts_and_has_another_name(
    made: StarterReport, tokenizer: Qwen2Tokenizer, played: list[Demonstration]
) -> None:
    dialogue = ChatFormat(tokenizer, "react", None)
    for demonstration in played:
        example = cloning.to_example(demonstration, dialogue)
        learned = [
            token for token, counts in zip(example.tokens, example.learned, strict=True) if counts
        ]
        right = [exchange for exchange in demonstration.exchanges if exchange.by_oracle]
        assert all(exchange.thought for exchange in right)
        messages = [
            f"Thought:\n{exchange.thought}\n\nAction:\n{exchange.action}" for exchange in right
        ]
        assert learned == [token for message in messages for token in dialogue.message(message)]
    assert find_starter_policy(BARE, "textcraft", 0, made.path.parent) is not None
    assert (
        find_starter_policy(
            Policy(starter=TINY, action_format="react"), "textcraft", 0, made.path.parent
        )
        is None
    )


def test_context_tokens_have_a_small_weight_and_padding_has_none(made: StarterReport) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.path)
    example = cloning.Example([5, 6, 7, 8, 9], [False, False, True, True, False])
    longer = cloning.Example([*example.tokens, 11, 12, 13], [*example.learned, False, False, False])

    def weighted(each: cloning.Example) -> tuple[torch.Tensor, float]:
        scores = model(torch.tensor([each.tokens])).logits[0].log_softmax(-1)
        weights = [1.0 if learned else cloning.CONTEXT_WEIGHT for learned in each.learned[1:]]
        losses = [-weight * scores[i, each.tokens[i + 1]] for i, weight in enumerate(weights)]
        return torch.stack(losses).sum(), sum(weights)

    for batch in ([example], [longer], [example, longer]):
        sums, weights = zip(*(weighted(each) for each in batch), strict=True)
        torch.testing.assert_close(cloning.cloning_loss(model, batch)[0], sum(sums))
        assert cloning.set_gradient(model, batch).loss == pytest.approx(
            float(sum(sums).detach() / sum(weights))
        )
        mean = sum(sums) / sum(weights)
        gradients = torch.autograd.grad(mean, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


@torch.no_grad()
def test_an_example_counts_as_exact_if_every_token_of_the_oracle_is_the_most_likely(
    made: StarterReport,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.path)
    tokens = [5, 6, 7]
    for learned in (False, True, True, False, True):
        likeliest = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        tokens.append(likeliest if learned else likeliest + 1)
    learned = [False, False, False, False, True, True, False, True]
    exact = cloning.Example(tokens, learned)
    missed = cloning.Example([*tokens[:-1], tokens[-1] + 1], learned)
    nothing_learned = cloning.Example(tokens, [False] * len(tokens))
    for batch, count in (
        ([exact], 1),
        ([missed], 0),
        ([nothing_learned], 0),
        ([exact, missed, nothing_learned, exact], 2),
    ):
        assert cloning.cloning_loss(model, batch)[1] == count


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 500, 4_000), (1.0, 10_000, 11_000)])
def test_cloning_stops_at_the_exact_match_rate_or_at_the_last_token(
    tmp_path: Path, share: float, least: int, most: int
) -> None:
    built = build_starter_policy(
        bare(tokens=10_000, stop_at_exact_match=share), "textcraft", 0, tmp_path
    )
    assert least <= built.tokens <= most
    assert built.learned_tokens < built.tokens


def test_demonstrations_repeat_up_to_the_token_budget(tmp_path: Path) -> None:
    few = build_starter_policy(bare(demonstrations=2), "textcraft", 0, tmp_path)
    assert few.demonstrations == 2
    assert few.tokens >= TINY.tokens
