"""Tests of SFT, DPO and AgentEvol on recorded trajectories: gradients, scores and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.rollout.trajectory import Trajectory
from tasks.training.checkpoint import steps_in
from tasks.training.packing import SHARED
from tests.support.recorded import (
    RecordedBatches,
    recorded_trajectories,
    small_experiment,
    train,
    trainer_of,
)
from tests.support.update_reference import Recorder, gradients_of, load, log_probabilities

pytestmark = pytest.mark.slow


def trained(
    name: str, batch: list[Trajectory], policy: str, folder: Path, **algorithm: Any
) -> tuple[Any, Recorder]:
    trainer = trainer_of(small_experiment(name=name, **algorithm), policy, folder)
    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if model is not None:
            model.double()
    recorder = Recorder(trainer)
    train(trainer, RecordedBatches(policy, batch=batch), 1)
    return trainer, recorder


def agree(update: Any, reference: dict[str, torch.Tensor]) -> float:
    ours = torch.cat([update["policy"][1][name].flatten() for name in reference])
    right = torch.cat([g.flatten() for g in reference.values()])
    return float((ours - right).norm() / right.norm())


@pytest.mark.parametrize("attention", [None, SHARED], ids=["padded", "packed"])
def test_cloning_gradient_matches_the_mean_log_likelihood(
    attention: str | None, policy: str, tmp_path: Path
) -> None:
    batch = recorded_trajectories(policy, 0)[:7]
    batch.append(batch[0])  # a repeated episode counts twice
    sizes = {"mini_batches": 2, "micro_batches": 3, "epochs": 2}
    _, recorder = trained("sft", batch, policy, tmp_path, attention=attention, **sizes)
    plain = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).eval()
    for number, update in enumerate(recorder.updates):
        model = load(plain, update["policy"][0])
        logps = torch.cat([log_probabilities(model, t) for t in batch[number % 2 :: 2]])
        assert agree(update, gradients_of(model, -logps.mean())) < 1e-5
    assert steps_in(tmp_path / "checkpoints") == [1]


@pytest.mark.parametrize("cloning", [0.0, 0.5])
def test_dpo_gradient_matches_its_formula(policy: str, tmp_path: Path, cloning: float) -> None:
    batch = recorded_trajectories(policy, 0)[:10]
    _, recorder = trained(
        "dpo",
        batch,
        policy,
        tmp_path,
        mini_batches=2,
        micro_batches=2,
        epochs=2,
        cloning_weight=cloning,
    )
    start = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).eval()
    with torch.no_grad():
        before = [float(log_probabilities(start, t).sum()) for t in batch]
    assert len(recorder.updates) == 4  # two epochs of two mini-batches
    for number, update in enumerate(recorder.updates):
        model = load(start, update["policy"][0])
        logps = [log_probabilities(model, t) for t in batch]
        ratios = [logp.sum() - b for logp, b in zip(logps, before, strict=True)]
        pairs = list(zip(ratios[::2], ratios[1::2], strict=True))[number % 2 :: 2]
        losses = [
            -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)) for chosen, rejected in pairs
        ]
        cloned = torch.cat(logps[::2][number % 2 :: 2])
        assert (
            agree(update, gradients_of(model, torch.stack(losses).mean() - cloning * cloned.mean()))
            < 1e-5
        )


def test_dpo_recomputes_the_same_share_of_the_blocks_in_every_micro_batch(
    policy: str, tmp_path: Path
) -> None:
    experiment = small_experiment(name="dpo", micro_batches=2)
    half = experiment.policy.model_copy(update={"gradient_checkpointing": 0.5})
    trainer = trainer_of(experiment.model_copy(update={"policy": half}), policy, tmp_path)
    seen: list[tuple[int, bool]] = []

    def note(number: int, block: Any) -> None:
        if torch.is_grad_enabled():
            seen.append((number, block.gradient_checkpointing))

    for number, block in enumerate(trainer.model.model.layers):
        block.register_forward_pre_hook(lambda block, _, number=number: note(number, block))
    (micro_batches,) = trainer.mini_batches_of(recorded_trajectories(policy, 0)[:4], 0)
    for number, micro_batch in enumerate(micro_batches, 1):
        trainer.add_gradient(micro_batch, number, of=2)
    assert len(micro_batches) == 2
    assert set(seen) == {(0, False), (1, True)}


def test_empty_micro_batches_give_finite_gradients(policy: str, tmp_path: Path) -> None:
    for name in ("sft", "dpo"):
        _, recorder = trained(
            name, recorded_trajectories(policy, 0)[:2], policy, tmp_path / name, micro_batches=3
        )
        assert all(g.isfinite().all() for g in recorder.updates[0]["policy"][1].values())


def test_scores_of_continuations_match_the_reference(policy: str, tmp_path: Path) -> None:
    trainer, _ = trained("sft", recorded_trajectories(policy, 0)[:2], policy, tmp_path)
    scores = trainer.score_continuations([[1, 2, 3], [4]], [[5, 6], [7, 8, 9]])
    trajectory = recorded_trajectories(policy, 0)[0]
    trajectory.prompt, trajectory.turns = [1, 2, 3], trajectory.turns[:1]
    trajectory.turns[0].tokens, trajectory.turns[0].observation_tokens = [5, 6], []
    model = load(
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64),
        dict(trainer.model.named_parameters()),
    )
    assert scores[0] == pytest.approx(log_probabilities(model, trajectory).tolist(), rel=1e-5)
    assert [len(row) for row in scores] == [2, 3]


def test_agentevol_restarts_from_the_initial_policy_and_resumes_exactly(
    policy: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "name": "agentevol",
        "explore_every": 2,
        "warmup_steps": 1,
        "learning_rate": 1e-3,
        "micro_batches": 2,
    }
    batch = recorded_trajectories(policy, 0)[:6]

    def trained(folder: Path, until: int, step: int = 0, **more: Any) -> dict[str, torch.Tensor]:
        resume = folder / "checkpoints" / f"step-{step:06d}" if step else None
        trainer = trainer_of(small_experiment(**settings, **more), policy, folder, resume)
        train(trainer, RecordedBatches(policy, batch=batch), until, step)
        return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}

    def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[name], other[name]) for name in one)

    once = trained(tmp_path / "once", 2, restart_from_base=True)
    twice = trained(tmp_path / "twice", 4, restart_from_base=True)
    assert equal(
        once, twice
    )  # the same batch from the same base, with a fresh optimiser and warm-up
    assert not equal(once, trained(tmp_path / "on", 4))
    trained(tmp_path / "resumed", 3, restart_from_base=True)
    assert equal(trained(tmp_path / "resumed", 4, 3, restart_from_base=True), twice)


def test_packed_and_padded_trainers_give_the_same_scores(policy: str, tmp_path: Path) -> None:
    prompts, continuations = [[3, 4, 5], [6, 7, 8, 9]], [[1, 2], [3]]
    padded, packed = (
        trainer_of(
            small_experiment(name="sft", attention=attention), policy, tmp_path / name
        ).score_continuations(prompts, continuations)
        for name, attention in (("padded", None), ("packed", SHARED))
    )
    assert packed == [pytest.approx(row, abs=1e-5) for row in padded]
