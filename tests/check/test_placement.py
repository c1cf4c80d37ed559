"""Tests of the placement of trainer ranks, engines and servers on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.infrastructure import InfraSettings
from configs.placement import PlacementError, place
from configs.recipe import RecipeError, load_recipe
from flows import checks
from flows.command import parse_recipe, recipe_parser
from flows.gpu_memory import requested_machine
from flows.plan import PlanRequest, adapter_section, placement_section, transfer_section
from tasks.training.memory_plan import MemoryPlan, PlanAnswer

EIGHT = [str(number) for number in range(8)]


@pytest.mark.parametrize(
    ("settings", "processes", "gpus", "ranks", "engines"),
    [
        ({}, 1, [], [], []),
        ({"engine_servers": 2}, 1, [], [], []),
        ({}, 2, EIGHT, ["0", "1"], [("0", 0, 0.45), ("1", 1, 0.45)]),
        ({"engine_memory_fraction": 0.3}, 1, ["0"], ["0"], [("0", 0, 0.3)]),
        ({"engine_servers": 2}, 6, EIGHT, EIGHT[:6], [("6", None, 0.9), ("7", None, 0.9)]),
        ({"engine_servers": 2}, 1, EIGHT, ["0"], [("1", None, 0.9), ("2", None, 0.9)]),
        (
            {"engine_servers": 2, "engine_gpus": ["6", "7"]},
            2,
            EIGHT,
            ["0", "1"],
            [("6", None, 0.9), ("7", None, 0.9)],
        ),
        (
            {"engine_servers": 1, "engine_memory_fraction": 0.8},
            1,
            ["4", "5"],
            ["4"],
            [("5", None, 0.8)],
        ),
        (
            {"engine_servers": 1, "engine_gpus": ["GPU-7f"]},
            1,
            ["GPU-3a", "GPU-7f"],
            ["GPU-3a"],
            [("GPU-7f", None, 0.9)],
        ),
        ({"engine_urls": ["http://a:1"]}, 8, EIGHT, EIGHT, []),
        ({"engine_servers": 2, "ray_address": "auto", "runs": "/runs"}, 8, EIGHT, EIGHT, []),
        ({"ray_address": "auto", "runs": "/runs"}, 1, ["0"], ["0"], [("0", 0, 0.45)]),
    ],
)
def test_ranks_use_the_first_gpus_and_servers_use_others(
    settings: dict[str, Any],
    processes: int,
    gpus: list[str],
    ranks: list[str],
    engines: list[tuple[str, int | None, float]],
) -> None:
    found = place(InfraSettings(**settings), processes, gpus)
    assert list(found.ranks) == ranks
    assert [
        (engine.gpu, engine.rank, engine.memory_fraction) for engine in found.engines
    ] == engines


@pytest.mark.parametrize(
    ("settings", "processes", "gpus", "named"),
    [
        ({}, 9, EIGHT, "AGENTGYM_TRAINER_PROCESSES"),
        (
            {"engine_servers": 2, "engine_gpus": ["6", "7"]},
            8,
            EIGHT,
            "AGENTGYM_ENGINE_GPUS: rank 6 and vLLM server 0",
        ),
        ({"engine_servers": 2}, 1, ["0"], "AGENTGYM_ENGINE_SERVERS"),
        ({"engine_servers": 2}, 7, EIGHT, "AGENTGYM_ENGINE_SERVERS"),
        (
            {"engine_servers": 2, "engine_gpus": ["7", "7"]},
            1,
            EIGHT,
            "AGENTGYM_ENGINE_GPUS: vLLM server 0 and vLLM server 1",
        ),
        ({"engine_servers": 1, "engine_gpus": ["8"]}, 1, EIGHT, "AGENTGYM_ENGINE_GPUS"),
    ],
)
def test_two_claims_on_one_gpu_are_refused(
    settings: dict[str, Any], processes: int, gpus: list[str], named: str
) -> None:
    with pytest.raises(PlacementError, match=named):
        place(InfraSettings(**settings), processes, gpus)


def test_run_with_too_few_gpus_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.training.local_trainer.visible_gpus", lambda: ["0"])
    with pytest.raises(RecipeError, match="AGENTGYM_ENGINE_SERVERS"):
        checks.check_experiment(load_recipe("textcraft"), InfraSettings(engine_servers=2))


@pytest.mark.parametrize(
    ("fields", "processes", "named"),
    [
        ({}, 3, "AGENTGYM_TRAINER_PROCESSES"),
        ({"algorithm.name": "sft"}, 4, r"algorithm\.name"),
        ({"policy.dtype": "float32"}, 4, r"policy\.dtype"),
        ({"policy.attn_implementation": "sdpa"}, 4, r"policy\.attn_implementation"),
        ({}, 4, None),
    ],
)
def test_context_parallelism_must_suit_the_recipe_and_divide_the_ranks(
    fields: dict[str, Any], processes: int, named: str | None, tmp_path: Path
) -> None:
    (tmp_path / "pairs.yaml").write_text(f"{{processes: {processes}, context_parallel: 2}}")
    experiment = load_recipe("textcraft", {"policy.dtype": "bfloat16", **fields})
    infrastructure = InfraSettings(launch=str(tmp_path / "pairs.yaml"))
    if named is None:
        checks.check_context_parallel(experiment, infrastructure)
        return
    with pytest.raises(RecipeError, match=named):
        checks.check_context_parallel(experiment, infrastructure)


def test_plan_shows_the_use_of_each_gpu() -> None:
    infrastructure = InfraSettings(engine_servers=2)
    machine, placement = requested_machine(infrastructure, 4, 80)
    assert machine is not None
    assert (machine.gpus, machine.engine_fraction, machine.server_fraction) == (2, 0.0, 0.9)
    text = placement_section(
        PlanRequest(load_recipe("textcraft"), infrastructure, machine, placement)
    )
    *table, idle = text.splitlines()
    assert "rollout.max_off_policy_steps" in idle
    assert [line.split() for line in table[-4:]] == [
        ["0", "rank", "0"],
        ["1", "rank", "1"],
        ["2", "vLLM", "server", "0", "90%"],
        ["3", "vLLM", "server", "1", "90%"],
    ]
    ahead = load_recipe("textcraft", {"rollout.max_off_policy_steps": 1})
    text = placement_section(PlanRequest(ahead, infrastructure, machine, placement))
    assert "rollout.max_off_policy_steps" not in text


@pytest.mark.parametrize(
    ("settings", "engine", "uses"),
    [
        ({}, "vllm", {"engine_fraction": 0.45}),
        ({}, "transformers", {"engine_fraction": 0.0, "reserves": False}),
        ({"engine_urls": ["http://a:1"], "engine_token": "x"}, "vllm", {"server_fraction": 0.0}),
        ({"trainer_processes": 8}, "vllm", {"gpus": 8, "sharding": "none"}),
        ({}, "vllm", {"gpus": 8, "sharding": "fsdp2"}),
    ],
)
def test_plan_knows_engines_without_reserved_memory_and_given_processes(
    settings: dict[str, Any], engine: str, uses: dict[str, object]
) -> None:
    machine, _ = requested_machine(InfraSettings(**settings), 8, 80, engine=engine)
    assert machine is not None
    assert {name: getattr(machine, name) for name in uses} == uses


@pytest.mark.parametrize(
    ("settings", "ranks", "servers"),
    [
        ({}, 1, 0),
        ({"engine_servers": 2}, 1, 2),
        ({"launch": "one-node-fsdp2"}, 8, 0),
        ({"launch": "one-node-fsdp2", "trainer_processes": 4, "engine_servers": 2}, 4, 2),
    ],
)
def test_plan_without_a_number_of_gpus_takes_one_for_each_process(
    settings: dict[str, Any], ranks: int, servers: int
) -> None:
    machine, placement = requested_machine(InfraSettings(**settings), None, None, "H100")
    assert machine is not None
    assert machine.gpus == len(placement.ranks) == ranks
    assert len(placement.servers) == servers


def test_plan_for_other_gpus_is_made_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", "one-node-fsdp2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("tasks.provision.accelerators.installed_gpus", lambda: 1)
    words = ["textcraft-qwen2.5-7b"]
    _, overrides = parse_recipe(recipe_parser("plan", "", ""), words, runs_here=False)
    assert overrides == {}
    with pytest.raises(SystemExit, match="AGENTGYM_TRAINER_PROCESSES"):
        parse_recipe(recipe_parser("train", "", ""), words)


def test_the_plan_names_the_learning_rate_of_adapters() -> None:
    recipe = load_recipe("textcraft", {"policy.lora.rank": 8, "algorithm.learning_rate": 2e-6})
    assert "2e-05" in adapter_section(PlanRequest(recipe, InfraSettings(), None))
    assert adapter_section(PlanRequest(load_recipe("textcraft"), InfraSettings(), None)) == ""


@pytest.mark.parametrize(("weights", "gigabytes"), [("folder", "15.2 GB"), ("nccl", "1.1 GB")])
def test_plan_shows_the_size_of_a_weight_transfer(weights: str, gigabytes: str) -> None:
    infrastructure = InfraSettings(engine_servers=2, engine_weights=weights)
    machine, placement = requested_machine(infrastructure, 4, 80)
    assert machine is not None
    request = PlanRequest(load_recipe("textcraft-qwen2.5-7b"), infrastructure, machine, placement)
    plan = MemoryPlan(
        trainer={}, parameters=7_600_000_000, engine_weights=15.2e9, kv_bytes=1, machine=machine
    )
    request.__dict__["memory"] = PlanAnswer(text="", fits=True, plan=plan)  # skips the slow trace
    assert gigabytes in transfer_section(request)
