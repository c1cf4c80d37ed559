"""Tests of the memory plan: compared with real updates, and for models that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.experiment import StarterPolicy
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows.gpu_memory import plan_of
from flows.model_check import fit_experiment
from flows.plan import PlanRequest, cpu_section
from tasks.provision.local import ON_LOOPBACK
from tasks.training import memory_plan
from tasks.training.memory_plan import Machine
from tests.check.test_model_check import CONTEXT, download, hub_cache, model
from tests.support.counting_servers import ROOT
from tests.support.measured_update import LENGTH, ROWS, measured_peak
from tests.support.processes import run_module, run_python
from tests.support.qwen import qwen_folder
from tests.support.tiny_policy import build_tiny_policy

__all__ = ["hub_cache", "model"]  # fixtures
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a policy whose weights take about as much memory as its activations."""
    return build_tiny_policy(
        tmp_path_factory.mktemp("larger") / "policy",
        size=StarterPolicy(hidden_size=256, layers=4, heads=4),
    )


@pytest.fixture(scope="module")
def traced(larger: str) -> dict[str, int]:
    """Return the traced memory of full, sharded and LoRA updates, in bytes."""
    trace = (
        "import json, torch\n"
        "from transformers import AutoConfig\n"
        "from configs.experiment import Lora\n"
        "from tasks.training.memory_trace import TracedUpdate, trace\n"
        "common = dict(compute=torch.float32, gradient_checkpointing=False, critic=False)\n"
        f"common |= dict(rows={ROWS}, tokens={LENGTH})\n"
        f"model = {larger!r}\n"
        "config = AutoConfig.from_pretrained(model)\n"
        "one = dict(processes=1, sharded=False)\n"
        "found = lambda **of: trace(config, TracedUpdate(**common, **of))\n"
        "peak = lambda m: m.weights + m.gradients + m.optimiser + m.reference + m.critic + "
        "m.activations\n"
        "two, many = (found(processes=number, sharded=True, reference=model) for number in (2, "
        "16))\n"
        "held = {'whole': peak(found(**one, reference=model)), 'sharded': peak(two)}\n"
        "held |= {'gradients of 2 ranks': two.gradients}\n"
        "held |= {'lora': peak(found(**one, reference=None, lora=Lora(rank=8, alpha=8)))}\n"
        "held |= {'other of 2 ranks': two.activations, 'other of 16 ranks': many.activations}\n"
        "print(json.dumps(held))"
    )
    found: dict[str, int] = json.loads(run_python(trace).splitlines()[-1])
    return found


@pytest.mark.parametrize(("trained", "lora"), [("whole", None), ("lora", {"rank": 8, "alpha": 8})])
def test_memory_trace_is_within_10_percent_of_a_real_update(
    trained: str, lora: dict[str, int] | None, larger: str, traced: dict[str, int], tmp_path: Path
) -> None:
    assert traced[trained] == pytest.approx(measured_peak(larger, tmp_path / "run", lora), rel=0.1)


def test_memory_trace_of_two_sharded_ranks_is_within_10_percent(
    larger: str, traced: dict[str, int], tmp_path: Path
) -> None:
    variables = {
        **ON_LOOPBACK,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }
    place = ["--nproc_per_node", "2", "--rdzv_backend", "memory", "--rdzv_endpoint", "127.0.0.1"]
    module = ["-m", "tests.support.measured_update", larger, str(tmp_path)]
    verdict = str(tmp_path / "verdict")
    done = run_module("tasks.training.launch", verdict, *place, *module, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert traced["sharded"] == pytest.approx(int((tmp_path / "peak").read_text()), rel=0.1)


def test_other_memory_hardly_depends_on_the_number_of_ranks(traced: dict[str, int]) -> None:
    """Compare 16 ranks with 2, with the gradients of one of the two as a margin.

    More ranks hold less of the sharded memory at the peak, so the remainder is slightly larger.
    """
    margin = traced["gradients of 2 ranks"]
    assert traced["other of 16 ranks"] < traced["other of 2 ranks"] + margin


def test_a_7b_model_fits_only_with_sharding(tmp_path: Path) -> None:
    recipe, folder = load_recipe("textcraft-qwen2.5-7b"), qwen_folder("Qwen2.5-7B", tmp_path)
    machine = Machine(gpus=8, gpu_memory=80, sharding="none", engine_fraction=0.45)
    answer = plan_of(
        recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"model": folder})}),
        machine,
    )
    assert answer is not None
    assert not answer.fits
    assert "weights" in answer.text
    assert "AGENTGYM_LAUNCH" in answer.text
    assert "fsdp2" in answer.text


def test_a_plan_needs_only_the_downloaded_configuration(model: Path, hub_cache: Path) -> None:
    fields = {
        "policy.model": download(model, hub_cache, "config.json"),
        "rollout.trajectory_tokens": CONTEXT,
    }
    planned = fit_experiment(load_recipe("textcraft", fields), needs_tokenizer=False)
    machine = Machine(gpus=1, gpu_memory=80, sharding="none", engine_fraction=0.3)
    assert plan_of(planned, machine) is not None


def held(policy: str, trajectory_tokens: int = 2048, **machine: object) -> dict[str, float]:
    """Return the bytes that a GPU of 80 GB holds, by kind."""
    fields = {"policy.model": policy, "rollout.trajectory_tokens": trajectory_tokens}
    given = {"gpu_memory": 80, "engine_fraction": 0.0, **machine}
    recipe = load_recipe("textcraft", fields)
    request = memory_plan.PlanRequest(
        experiment=recipe, model=policy, machine=Machine.model_validate(given)
    )
    return memory_plan.plan_memory(request).trainer


@pytest.mark.parametrize("gpus", [1, 2])
def test_hsdp_machines_hold_as_much_as_one_machine(policy: str, gpus: int) -> None:
    one = held(policy, gpus=gpus, sharding="none" if gpus == 1 else "fsdp2")
    two = held(policy, gpus=2 * gpus, sharding="hsdp", machines=2)
    for kind in ("weights", "gradients", "optimiser"):
        assert one[kind] == two[kind]


def test_context_parallel_ranks_split_the_activations(policy: str) -> None:
    whole, quarter = (
        held(policy, 8192, gpus=4, sharding="fsdp2", context_parallel=ranks) for ranks in (1, 4)
    )
    assert whole["weights"] == quarter["weights"]
    assert quarter["activations"] < 0.5 * whole["activations"]


def test_the_plan_of_a_language_model_on_a_cpu_adds_trainer_and_engine(policy: str) -> None:
    fields = {"policy.model": policy, "policy.dtype": "bfloat16", "rollout.trajectory_tokens": 256}
    text = cpu_section(
        PlanRequest(load_recipe("textcraft", fields), InfraSettings(engine_cpu_cache_gb=3), None)
    )
    sizes = {
        line[: line.rfind("  ")].strip(): float(line.split()[-2])
        for line in text.splitlines()
        if line.endswith(" GB")
    }
    machine, total = sizes.pop("this machine"), sizes.pop("all")
    assert total == pytest.approx(sum(sizes.values()), abs=0.1 * len(sizes))
    assert sizes["vLLM: KV cache"] == pytest.approx(3 * 2**30 / 1e9, abs=0.1)
    assert total < machine
    assert "phase 1" in text
