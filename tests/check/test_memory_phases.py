"""Tests of GPU memory plans with an engine that sleeps during the update, computed by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from configs.recipe import load_recipe
from tasks.training.memory_plan import GB, Machine, MemoryPlan, PlanRequest, faults, remedies, table

TRAINER = {
    "weights": 10,
    "gradients": 10,
    "optimiser": 20,
    "reference": 5,
    "critic": 0,
    "activations": 8,
}


def plan(**machine: Any) -> MemoryPlan:
    given = {"gpus": 2, "gpu_memory": 80, "sharding": "fsdp2", "engine_fraction": 0.5, **machine}
    held = {kind: size * GB for kind, size in TRAINER.items()}
    return MemoryPlan(
        trainer=held,
        scoring=2 * GB,
        parameters=1,
        engine_weights=5 * GB,
        kv_bytes=1_000_000,
        machine=Machine.model_validate(given),
    )


def request(plan: MemoryPlan, **fields: Any) -> PlanRequest:
    recipe = load_recipe(
        "textcraft-qwen2.5-7b",
        {"rollout.trajectory_tokens": 9000, "algorithm.micro_batch_tokens": 9000, **fields},
    )
    return PlanRequest(experiment=recipe, model="", machine=plan.machine)


def test_memory_of_an_awake_engine_and_the_update_add_up() -> None:
    assert plan().total == pytest.approx((53 + 40 + 2.5) * GB)


def test_engine_without_reserved_memory_counts_with_its_weights() -> None:
    assert plan(engine_fraction=0, reserves=False).total == pytest.approx((53 + 5 + 2.5) * GB)


def test_kv_cache_of_servers_is_split_over_their_gpus_and_unknown_elsewhere() -> None:
    served = plan(engine_fraction=0, server_fraction=0.9, server_gpus=2)
    assert served.kv_tokens == (144 - 5 - 3) * 1000
    elsewhere = plan(engine_fraction=0)
    assert faults(request(elsewhere), elsewhere) == []


def test_sleeping_engine_counts_the_larger_phase() -> None:
    sleeping = plan(engine_sleeps=True)
    update, rollout = (sum(phase.values()) for phase in sleeping.phases.values())
    assert update == pytest.approx(
        (53 + 1.5 + 2.5) * GB
    )  # the whole trainer, and the memory that vLLM does not free
    assert rollout == pytest.approx(
        (10 + 20 + 5 + 2 + 40 + 2.5) * GB
    )  # without gradients and activations, but with the check of new weights
    assert sleeping.total == rollout
    assert "rollout" in table(sleeping)
    assert "33.5 GB" in next(
        line for line in table(sleeping).splitlines() if line.startswith("vLLM: KV cache")
    )


def test_ddp_buckets_stay_during_the_rollout() -> None:
    assert plan(engine_sleeps=True, sharding="none").total == pytest.approx(
        (10 + 10 + 20 + 5 + 2 + 40 + 2.5) * GB
    )


def test_smallest_sufficient_change_is_named() -> None:
    too_much = plan()
    asked = request(too_much)
    [fault] = faults(asked, too_much)
    assert re.findall(r"[\d.]+", fault) == ["95.5", "80"]
    changes, after = remedies(asked, too_much)
    assert changes == ["AGENTGYM_ENGINE_MEMORY_FRACTION=0.3"]  # 53 + 24 + 2.5
    assert after is not None
    assert after.total == pytest.approx(79.5 * GB, rel=1e-6)


def test_engine_sleep_is_suggested_if_a_smaller_fraction_holds_no_trajectory() -> None:
    too_much = plan()
    asked = request(
        too_much, **{"rollout.trajectory_tokens": 18_000}
    )  # 30 % of the GPU holds 17,500 tokens
    changes, after = remedies(asked, too_much)
    assert changes == ["AGENTGYM_ENGINE_SLEEP=true"]
    assert after is not None
    assert after.total == pytest.approx(79.5 * GB)


def test_off_policy_engine_gets_no_sleep_suggestion() -> None:
    too_much = plan()
    ahead = {
        "rollout.max_off_policy_steps": 1,
        "rollout.trajectory_tokens": 18_000,
        "policy.lora": {"rank": 8},
    }
    changes, after = remedies(request(too_much, **ahead), too_much)
    assert after is None
    assert changes == ["AGENTGYM_ENGINE_MEMORY_FRACTION=0.2"]
