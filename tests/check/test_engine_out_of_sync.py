"""Tests of an engine whose weights are replaced during a step: its later episodes are left out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM

from configs.experiment import Experiment, StarterPolicy
from tasks.inference import weight_sync_check
from tasks.inference.engine import Sampling
from tasks.inference.transformers_engine import TransformersEngine
from tasks.inference.weight_sync_check import CHECK_SLACK, WeightSyncError, tolerance
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training import policy_gradient_trainer
from tasks.training.out_of_sync import EPISODES, GAP, TOLERATED
from tasks.training.token_scores import log_probabilities
from tests.support.recorded import GROUPS, MEMBERS, small_experiment, trainer_of
from tests.support.tiny_policy import build_tiny_policy


def tf32(values: torch.Tensor) -> torch.Tensor:
    """Round to the ten bits of TF32's mantissa, as a GPU's tensor cores do with their inputs."""
    return ((values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def attention_in_tf32(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention as vLLM's Triton kernel does in float32 on a GPU."""
    repeats, length = query.size(1) // key.size(1), query.size(2)
    key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    scores = tf32(query) @ tf32(key).transpose(2, 3) * scaling
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return (tf32(weights) @ tf32(value)).transpose(1, 2).contiguous(), None


def test_the_tf32_attention_of_a_gpu_counts_as_rounding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size = StarterPolicy(hidden_size=192, layers=4, heads=4)  # the quickstart's
    folder = build_tiny_policy(tmp_path, size=size)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    AttentionInterface.register("tf32", attention_in_tf32)
    ids = torch.randint(0, model.config.vocab_size, (4, 64), generator=torch.manual_seed(0))
    found = []
    for attention in ("sdpa", "tf32"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            scores = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        found.append(scores.gather(2, ids[:, 1:, None]))
    gap = float((found[0] - found[1]).abs().mean())
    monkeypatch.setattr(weight_sync_check, "visible_gpus", list)
    assert gap > CHECK_SLACK * tolerance("float32")
    monkeypatch.setattr(weight_sync_check, "visible_gpus", lambda: ["0"])
    assert gap < CHECK_SLACK * tolerance("float32") / 4


def experiment_in(dtype: str, temperature: float) -> Experiment:
    made = small_experiment(name="grpo", micro_batches=2)
    fields = {
        "policy": made.policy.model_copy(update={"dtype": dtype}),
        "rollout": made.rollout.model_copy(update={"temperature": temperature}),
    }
    return made.model_copy(update=fields)


def played(engine: TransformersEngine, temperature: float, groups: range) -> list[Trajectory]:
    async def one(group: int, member: int) -> Trajectory:
        prompt = [5 + group, 6, 7]
        written = await engine.generate(
            prompt, Sampling(temperature, 12 + member, (), 100 * group + member)
        )
        turn = Turn(written.tokens, written.log_probabilities, "look", reward=float(member % 2))
        return Trajectory(
            "textcraft",
            group,
            group,
            member,
            0,
            4,
            0,
            engine.name,
            prompt,
            turns=[turn],
            outcome=Outcome.FINISHED,
        )

    async def play_all() -> list[Trajectory]:
        return list(
            await asyncio.gather(
                *(one(group, member) for group in groups for member in range(MEMBERS))
            )
        )

    return asyncio.run(play_all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_episodes_sampled_with_foreign_weights_are_left_out(
    dtype: str, temperature: float, policy: str, tmp_path: Path
) -> None:
    trainer = trainer_of(experiment_in(dtype, temperature), policy, tmp_path)
    engine = TransformersEngine(policy, context_length=64, max_num_seqs=16, dtype=dtype)
    sound = played(engine, temperature, range(GROUPS))
    beats = list[int]()
    trainer.beat = lambda: beats.append(1)
    trainer.mini_batches_of(sound, 0)
    assert len(beats) >= 2  # before the comparison with the engine, and before the update's scores
    assert trainer.batch_metrics[EPISODES] == 0
    assert not trainer.out_of_sync
    torch.manual_seed(0)
    engine.load(
        (name, weight.detach() + 0.3 * torch.randn_like(weight))
        for name, weight in trainer.model.named_parameters()
    )
    replaced = played(engine, temperature, range(GROUPS - 1, GROUPS))
    trainer.mini_batches_of([t for t in sound if t.group < GROUPS - 1] + replaced, 0)
    assert trainer.batch_metrics[EPISODES] == MEMBERS
    assert trainer.batch_metrics[GAP] > 2 * trainer.batch_metrics[TOLERATED]
    assert trainer.out_of_sync == {(t.group, t.member) for t in replaced}
    with pytest.raises(WeightSyncError):
        trainer.mini_batches_of(replaced, 0)


def test_zero_variance_groups_are_compared_only_if_other_groups_are_out_of_sync(
    policy: str, tmp_path: Path
) -> None:
    trainer = trainer_of(experiment_in("float32", 1.0), policy, tmp_path)
    engine = TransformersEngine(policy, context_length=64, max_num_seqs=16, dtype="float32")
    sound = played(engine, 1.0, range(GROUPS))
    torch.manual_seed(0)
    engine.load(
        (name, weight.detach() + 0.3 * torch.randn_like(weight))
        for name, weight in trainer.model.named_parameters()
    )
    foreign = played(engine, 1.0, range(GROUPS - 1, GROUPS + 1))
    equal = [
        replace(t, turns=[replace(turn, reward=0.0) for turn in t.turns])
        for t in foreign
        if t.group == GROUPS
    ]
    trainer.mini_batches_of(sound + equal, 0)
    assert trainer.batch_metrics[EPISODES] == 0
    differing = [t for t in foreign if t.group < GROUPS]
    trainer.mini_batches_of([t for t in sound if t.group < GROUPS - 1] + differing + equal, 0)
    assert trainer.batch_metrics[EPISODES] == 2 * MEMBERS


def test_truncated_correction_reuses_the_scores_of_the_comparison(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_in("float32", 1.0)
    algorithm = experiment.algorithm.model_copy(update={"importance_correction": "truncated"})
    trainer = trainer_of(experiment.model_copy(update={"algorithm": algorithm}), policy, tmp_path)
    engine = TransformersEngine(policy, context_length=64, max_num_seqs=16, dtype="float32")
    sound = played(engine, 1.0, range(GROUPS))
    scored: list[int] = []

    def counted(
        model: Any, tensors: dict[str, torch.Tensor], *others: Any, **named: Any
    ) -> torch.Tensor:
        scored.append(len(tensors["input_ids"]))
        return log_probabilities(model, tensors, *others, **named)

    monkeypatch.setattr(policy_gradient_trainer, "log_probabilities", counted)
    mini_batches = trainer.mini_batches_of(sound, 0)
    assert sum(scored) == len(sound)
    for tensors in (each for batch in mini_batches for each in batch):
        own = (tensors["completion_mask"] * tensors["tool_mask"]).bool()
        expected = trainer.score(trainer.model, tensors)
        assert torch.allclose(tensors["old_per_token_logps"][own], expected[own], atol=1e-5)
