"""Tests of the estimated time of a step, against computations by hand."""

from __future__ import annotations

import pytest

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.recipe import load_recipe
from flows.plan import PlanRequest, _tokens, cpu_section, time_section
from tasks.curriculum.work import ExpertEpisode, Work, likely_work
from tasks.training.memory_plan import Machine, MemoryPlan, PlanAnswer
from tasks.training.step_time import (
    BANDWIDTH_SHARE,
    GPUS,
    UTILISATION,
    Core,
    Engines,
    Gpu,
    MeasuredSpeed,
    StepTokens,
    cpu_seconds,
    in_words,
    measured_speed,
    operations_per_token,
    rollout_seconds,
    update_seconds,
)

STEP = StepTokens(episodes=8, written=800, tokens=8000)
ENGINES = Engines(number=2, max_num_seqs=16, kv_tokens=2000, kv_bytes=1e6, weight_bytes=1e9)
GPU = Gpu(operations=7.2e9 / UTILISATION, bandwidth=1e9 / BANDWIDTH_SHARE, memory=1)


def test_operations_follow_from_the_passes_of_the_recipe() -> None:
    # Two epochs of 2 forward, 2 to recompute the activations, and 4 backward. Old and reference
    # log-probabilities take 2 each.
    assert operations_per_token(load_recipe("textcraft-qwen2.5-7b")) == 2 * (2 + 2 + 4) + 2 + 2
    # LoRA skips the gradients of the weights.
    assert (
        operations_per_token(load_recipe("textcraft-qwen2.5-7b", {"policy.lora": {"rank": 8}}))
        == 2 * (2 + 2 + 2) + 2 + 2
    )
    # The terms are policy, critic, old log-probabilities and values.
    ppo = {"algorithm": {"name": "ppo", "steps": 1, "importance_correction": "truncated"}}
    assert operations_per_token(load_recipe("textcraft", ppo)) == 6 + 6 + 2 + 2
    behaviour = {"algorithm": {"name": "grpo", "steps": 1, "importance_correction": "behaviour"}}
    # The log-probabilities of on-policy episodes are compared with the engine's.
    assert operations_per_token(load_recipe("textcraft", behaviour)) == 6 + 2
    older = {"rollout.max_off_policy_steps": 1}
    assert operations_per_token(load_recipe("textcraft", behaviour | older)) == 6


def test_update_time_is_divided_by_the_number_of_gpus() -> None:
    assert update_seconds(STEP, parameters=900_000, per_token=20, gpus=2, gpu=GPU) == pytest.approx(
        8000 * 0.9e6 * 20 / (2 * 7.2e9)
    )


def test_decoding_time_is_bound_by_memory_bandwidth() -> None:
    # An engine has 4 episodes of 1,000 tokens and room for 2 of them. One token for both reads 1 GB
    # of weights and 2 x 500 tokens x 1 MB of cache, which takes 2 s. The engine writes 400 tokens
    # in 200 such passes. It reads 3,600 tokens with 2 x 10^6 operations each, which takes 1 s.
    assert rollout_seconds(STEP, 1_000_000, ENGINES, GPU) == pytest.approx(200 * 2 + 1)


def test_decoding_time_is_bound_by_operations_if_memory_is_fast() -> None:
    fast = Gpu(GPU.operations, bandwidth=1e30, memory=1)
    assert rollout_seconds(STEP, 1_000_000, ENGINES, fast) == pytest.approx(400 * 2e6 / 7.2e9 + 1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((30, 90), "30 to 90 s"),
        ((60, 900), "60 s to 15 min"),
        ((2, 2), "2 s"),
        ((90_000, 200_000), "25 h to 2.3 days"),
    ],
)
def test_seconds_are_formatted_with_units(seconds: tuple[float, float], words: str) -> None:
    assert in_words(*seconds) == words


def plan_request(gpu: str | None, recipe: Experiment | None = None) -> PlanRequest:
    machine = Machine(gpus=8, gpu_memory=80, sharding="fsdp2", engine_fraction=0.45, gpu=gpu)
    plan = MemoryPlan(
        trainer={},
        parameters=7_600_000_000,
        engine_weights=15.2e9,
        kv_bytes=57_344,
        machine=machine,
    )
    recipe = recipe or load_recipe("textcraft-qwen2.5-7b")
    made = PlanRequest(recipe, InfraSettings(), machine)
    made.__dict__["memory"] = PlanAnswer(text="", fits=True, plan=plan)  # skips a trace of a minute
    return made


def test_the_plan_has_the_times_of_each_phase_and_the_assumptions() -> None:
    section = time_section(plan_request("H100"))
    lines = section.splitlines()
    assert "8 x H100" in lines[0]
    assert [line.split()[:2] for line in lines[3:5]] == [["phase", "1"], ["phase", "2"]]
    assert "35%" in section


@pytest.mark.parametrize(
    "recipe",
    ["textcraft-qwen2.5-7b", "textcraft-qwen2.5-3b", "babyai-qwen2.5-7b", "searchqa-qwen2.5-7b"],
)
def test_the_range_of_a_step_is_at_most_a_factor_of_five(recipe: str) -> None:
    request = plan_request("H100", load_recipe(recipe))
    for _, amount in request.phases(likely_work):
        least, most = _tokens(amount, 1)
        for seconds in (update_of, rollout_of):
            assert seconds(least) < seconds(most) <= 5 * seconds(least)


def update_of(step: StepTokens) -> float:
    return update_seconds(step, 7_600_000_000, 20, 8, GPUS["H100"])


def rollout_of(step: StepTokens) -> float:
    engines = Engines(
        number=8, max_num_seqs=256, kv_tokens=333_000, kv_bytes=57_344, weight_bytes=15.2e9
    )
    return rollout_seconds(step, 7_600_000_000, engines, GPUS["H100"])


def test_likely_work_ranges_from_the_expert_to_longer_episodes_within_the_limits() -> None:
    recipe = load_recipe("textcraft-qwen2.5-7b", {"policy.action_format": "bare"})
    expert = [ExpertEpisode(turns=4, characters=800, actions=160)]
    # The expert has 4 turns of 10 tokens, and 640 characters to read. The upper bound has 2.5 times
    # as many turns, of 20 tokens each.
    assert likely_work(recipe, 10, 30, expert) == Work(10, (40, 100), (400, 2000), (2000, 6000))
    assert likely_work(recipe, 1, 6, expert).turns == (4, 6)
    assert likely_work(recipe, 1, 2, expert).turns == (2, 2)
    short = load_recipe(
        "textcraft-qwen2.5-7b", {"policy.action_format": "bare", "rollout.turn_tokens": 15}
    )
    assert likely_work(short, 1, 30, expert).policy_tokens == (40, 150)
    thinking = load_recipe("textcraft-qwen2.5-7b")
    assert likely_work(thinking, 1, 30, expert).policy_tokens == (4 * 60, 10 * 120)


def test_an_unknown_gpu_has_no_estimate() -> None:
    assert "--gpu" in time_section(plan_request(None))


def test_time_of_a_step_on_cpu_cores_equals_a_computation_by_hand() -> None:
    # Two cores read 7,200 tokens and write 800, with 2 x 10 operations each. They update on 8,000
    # tokens with 6 + 2 operations per parameter.
    rollout, update = cpu_seconds(
        STEP, 10, per_token=8, cores=2, core=Core("a core", update=1000, reading=100, writing=10)
    )
    assert rollout == pytest.approx((7200 * 20 / 100 + 800 * 20 / 10) / 2)
    assert update == pytest.approx(8000 * 10 * 8 / 1000 / 2)


def test_the_bit_exact_policies_have_no_cpu_section() -> None:
    assert cpu_section(PlanRequest(load_recipe("textcraft"), InfraSettings(), None)) == ""


def step(horizon: float, turns: float, rollout: float, update: float) -> dict[str, float]:
    return {
        "rollout/episodes": 10.0,
        "rollout/horizon": horizon,
        "rollout/turns": turns,
        "rollout/seconds": rollout,
        "update/seconds": update,
    }


def test_the_speed_of_measured_steps_carries_over_to_longer_horizons() -> None:
    speed = measured_speed({1: step(8, 8, 900.0, 900.0), 2: step(8, 4, 20.0, 40.0)})
    assert speed == MeasuredSpeed(share=0.5, rollout=0.5, update=1.0)
    assert speed.seconds(episodes=20, horizon=12) == (60.0, 120.0)


def test_speed_requires_at_least_one_measured_step() -> None:
    assert measured_speed({3: step(8, 4, 20.0, 40.0)}).share == 0.5
    for nothing in ({}, {1: {"update/seconds": 3.0}}, {1: step(8, 0, 1.0, 1.0)}):
        with pytest.raises(ValueError, match="measured"):
            measured_speed(nothing)
