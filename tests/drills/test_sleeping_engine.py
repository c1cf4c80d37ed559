"""Tests of training with an engine that sleeps during the update.

A CPU has no sleep mode, so vLLM is patched to report one. Where its worker would release memory,
the test overwrites the weights and the KV cache. Engine, scheduler, trainer and episodes are real.
The test has its own file because a process can hold only one vLLM engine at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.training.trainer_main import TrainerMain
from tests.support.playing import starting
from tests.support.small_training import small_job
from tests.support.tiny_policy import build_tiny_policy

STEPS = 2


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of vLLM's worker and of the trainer's optimiser, in order."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.cpu_worker import CPUWorker

    from tasks.training.base_trainer import BaseTrainer

    calls: list[str] = []

    def sleep(worker: Any, level: int) -> None:
        calls.append(f"sleep {level}")
        with torch.no_grad():
            for weight in worker.model_runner.model.parameters():
                weight.fill_(torch.nan)
            for cache in worker.model_runner.kv_caches:
                cache.fill_(7)  # not NaN: attention multiplies entries beyond a sequence's end by 0

    def wake_up(worker: Any, tags: list[str]) -> None:
        calls.append(f"wake {' '.join(tags)}")

    def optimiser_step(trainer: BaseTrainer, stepped: Any = BaseTrainer.optimiser_step) -> None:
        calls.append("update")
        stepped(trainer)

    monkeypatch.setattr(type(current_platform), "is_sleep_mode_available", lambda _: True)
    monkeypatch.setattr(CPUWorker, "sleep", sleep)
    monkeypatch.setattr(CPUWorker, "wake_up", wake_up)
    monkeypatch.setattr(BaseTrainer, "optimiser_step", optimiser_step)
    return calls


def trained(
    policy: str, folder: Path, state_dir: Path, engine_sleep: bool
) -> dict[str, torch.Tensor]:
    """Train, and return the weights of the checkpoint after `STEPS` steps."""
    folder.mkdir()
    with starting("textcraft", state_dir) as start:
        trainer = TrainerMain(
            small_job(
                policy,
                folder,
                start().url,
                {"rollout.tasks_per_step": 2},
                engine_sleep=engine_sleep,
            ),
            None,
        )
        try:
            with trainer.worker:
                trainer.train(STEPS)
        finally:
            trainer.worker.engine.close()
    return dict(
        AutoModelForCausalLM.from_pretrained(
            folder / "checkpoints" / f"step-{STEPS:06d}"
        ).named_parameters()
    )


@pytest.mark.slow
def test_training_with_a_sleeping_engine_equals_training_without(
    tmp_path: Path, state_dir: Path, slept: list[str]
) -> None:
    policy = build_tiny_policy(tmp_path / "policy")
    awake = trained(policy, tmp_path / "awake", state_dir, engine_sleep=False)
    assert set(slept) == {"update"}
    slept.clear()
    asleep = trained(policy, tmp_path / "asleep", state_dir, engine_sleep=True)
    woken = ["wake weights", "wake kv_cache"]
    assert slept == [
        "sleep 2",
        *woken,
        *STEPS * ["sleep 2", "update", "update", *woken],
    ]  # a step has two mini-batches
    assert all(torch.equal(asleep[name], awake[name]) for name in awake)
