"""Tests of run names: they show what distinguishes runs, and names given by users are kept."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from configs.recipe import load_recipe
from configs.run_name import run_name
from flows.run_names import chosen_name


def name(overrides: dict[str, Any]) -> str:
    return run_name(load_recipe("textcraft", overrides), overrides)


def test_runs_that_differ_in_method_schedule_or_seed_have_different_names() -> None:
    names = [
        name({}),
        name({"algorithm.name": "rloo"}),
        name({"seeds.training": 1}),
        name({"curriculum": {"kind": "fixed", "horizon": 16}}),
        name({"curriculum.horizons": [4, 16]}),
        name({"algorithm.steps": 60}),
    ]
    assert names[0] == "grpo, stepwise 4-6-8, textcraft, seed 0"
    assert len(set(names)) == len(names)
    assert names[1].startswith("rloo, ")
    assert names[3].startswith("grpo, fixed 16, ")
    assert names[5] == "grpo, stepwise 4-6-8, textcraft, seed 0, steps 60"


def test_a_name_contains_the_overrides_that_it_does_not_show_otherwise() -> None:
    overrides = {
        "seeds.training": 2,
        "seeds.evaluation": 2,
        "seeds.starter": 0,
        "policy.model": "/models/Qwen2.5-3B",
    }
    assert name(overrides).endswith("seed 2, seeds.starter 0, model Qwen2.5-3B")
    many = {
        f"rollout.{field}": 900
        for field in (
            "turn_seconds",
            "episode_seconds",
            "batch_seconds",
            "request_seconds",
            "retries",
        )
    }
    assert name(many).endswith("request_seconds 900, and 1 more")
    both = {"rollout.temperature": 0.7, "evaluation.temperature": 0.5}
    assert name(both).endswith("rollout.temperature 0.7, evaluation.temperature 0.5")


def flow_run(name: str, **fields: Any) -> FlowRun:
    return FlowRun(id=uuid4(), flow_id=uuid4(), name=name, **fields)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (flow_run("brave-otter"), "grpo, seed 0"),
        (flow_run("brave-otter", deployment_id=uuid4(), auto_scheduled=True), "grpo, seed 0"),
        (
            flow_run("brave-otter", deployment_id=uuid4(), parent_task_run_id=uuid4()),
            "grpo, seed 0",
        ),
        (flow_run("my third try", deployment_id=uuid4()), "my third try"),
        (flow_run("lr-3e-4", deployment_id=uuid4()), "lr-3e-4"),
        (flow_run("brave-otter", deployment_id=uuid4()), "brave-otter: grpo, seed 0"),
    ],
)
def test_a_name_given_by_a_user_is_kept(run: FlowRun, expected: str) -> None:
    assert chosen_name(run, "grpo, seed 0") == expected
