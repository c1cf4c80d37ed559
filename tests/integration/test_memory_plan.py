"""What a run will hold of memory: the trace against the allocator of a real update, and what is said of models that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from configs.experiment import StarterPolicy
from configs.recipe import load_recipe
from flows.gpu_memory import plan_of
from tasks.training.memory_plan import Machine
from tests.support.counting_servers import ROOT
from tests.support.qwen import qwen_folder
from tests.support.recorded import RecordedBatches, recorded_trajectories, small_experiment, train, trainer_of
from tests.support.tiny_policy import build_tiny_policy

pytestmark = pytest.mark.slow

LENGTH, ROWS = 384, 4


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy whose weights are as much as its activations."""
    return build_tiny_policy(tmp_path_factory.mktemp("larger") / "policy", size=StarterPolicy(hidden_size=256, layers=4, heads=4))


@pytest.fixture(scope="module")
def traced(larger: str) -> dict[str, int]:
    """The peak that is traced of an update of all weights and of one of LoRA, in bytes."""
    trace = (
        "import json, torch\n"
        "from transformers import AutoConfig\n"
        "from configs.experiment import Lora\n"
        "from tasks.training.memory_trace import TracedUpdate, trace\n"
        "common = dict(processes=1, sharded=False, compute=torch.float32, gradient_checkpointing=False, critic=False)\n"
        f"common |= dict(rows={ROWS}, tokens={LENGTH})\n"
        f"config = AutoConfig.from_pretrained({larger!r})\n"
        "whole, lora = dict(reference=True), dict(reference=False, lora=Lora(rank=8, alpha=8))\n"
        "held = {name: trace(config, TracedUpdate(**common, **of)).peak for name, of in (('whole', whole), ('lora', lora))}\n"
        "print(json.dumps(held))"
    )
    told = subprocess.run([sys.executable, "-c", trace], capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert told.returncode == 0, told.stderr[-3000:]
    found: dict[str, int] = json.loads(told.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("trained", "lora"), [("whole", None), ("lora", {"rank": 8, "alpha": 8})])
def test_the_trace_is_within_a_tenth_of_what_the_allocator_gives_a_real_update(
    trained: str, lora: dict[str, int] | None, larger: str, traced: dict[str, int], tmp_path: Path
) -> None:
    policy = larger
    experiment = small_experiment(lora, name="grpo", steps=2, mini_batches=1, micro_batches=1, kl_coefficient=0.1, kl_in="loss")
    batch = [t for t in recorded_trajectories(policy, 0) if t.group == 0]
    for t in batch:
        t.prompt = [1] * (LENGTH - len(t.completion))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        trainer = trainer_of(experiment, policy, tmp_path / "run")
        train(trainer, RecordedBatches(policy, batch=batch), 1)
        with torch.profiler.record_function("second step"):
            train(trainer, RecordedBatches(policy, batch=batch), 2, 1)
    assert traced[trained] == pytest.approx(fullest(measured, "second step"), rel=0.1)


def fullest(measured: Any, name: str) -> int:
    """The most that torch's allocator had given out at once while something of this name ran, in bytes."""
    from torch._C._profiler import _EventType

    events: list[Any] = []
    rest = list(measured.profiler.kineto_results.experimental_event_tree())
    while rest:
        events.append(rest.pop())
        rest += events[-1].children
    (phase,) = [event for event in events if event.name == name]
    sizes = [e.extra_fields.total_allocated for e in events if e.tag == _EventType.Allocation and e.start_time_ns >= phase.start_time_ns]
    return max(sizes)


def test_seven_billion_parameters_whole_on_each_gpu_are_refused_with_the_table_and_fit_when_sharded(tmp_path: Path) -> None:
    recipe, folder = load_recipe("textcraft-qwen2.5-7b"), qwen_folder("Qwen2.5-7B", tmp_path)
    machine = Machine(gpus=8, gpu_memory=80, sharding="none", engine_fraction=0.45)
    told = plan_of(recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"model": folder})}), machine)
    assert told is not None
    assert not told.fits
    assert "weights" in told.text
    assert "It does not fit" in told.text
    assert "It fits with AGENTGYM_LAUNCH with sharding: fsdp2" in told.text
