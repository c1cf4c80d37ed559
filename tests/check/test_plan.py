"""Tests of the estimates of `agentgym plan`."""

from __future__ import annotations

import pytest

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from environments.registry import load_world
from flows.plan import expert_episodes, plan
from tasks.curriculum.work import ExpertEpisode, Work, play_expert, work
from tasks.training.step_time import MeasuredSpeed


def test_the_plan_has_every_phase_and_the_evaluations() -> None:
    text = plan(load_recipe("textcraft"), InfraSettings())
    lines = {line.partition("  ")[0]: line.split() for line in text.splitlines()}
    assert lines["phase 2"][2:5] == ["13-24", "6", "4,608"]
    assert lines["training"][1:3] == ["1-40", "15,360"]
    assert (
        lines["training"][5] == "95,232"
    )  # 4,608 x (4 + 6) + 6,144 x 8 turns if every episode reaches the horizon
    assert "4 evaluations" in lines


def test_unknown_task_list_is_refused_with_its_field() -> None:
    recipe = load_recipe("textcraft", {"environment.name": "tests.support.counting_world:Counting"})
    with pytest.raises(RecipeError) as refused:
        plan(recipe, InfraSettings())
    assert str(refused.value).startswith("environment.train_tasks: ")


def test_a_gated_schedule_is_planned_without_advancing() -> None:
    text = plan(
        load_recipe(
            "textcraft", {"curriculum": {"kind": "success-gated", "horizons": [6, 10, 16]}}
        ),
        InfraSettings(),
    )
    assert "1-40        6" in text
    assert "success-gated" in text


def test_an_expert_that_is_slower_than_its_time_plays_one_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flows.plan.EXPERT_SECONDS", 0.0)
    recipe = load_recipe("textcraft")
    sample, _ = expert_episodes(recipe, "evaluation.tasks", recipe.evaluation.tasks)
    assert len(sample.episodes) == 1


def test_estimates_without_an_expert_are_bounded_by_the_budgets() -> None:
    experiment = load_recipe("textcraft", {"environment.name": "no_such_package.world:World"})
    text = plan(experiment, InfraSettings())
    assert "no_such_package" in text
    assert "6,144" in text


def test_work_equals_a_computation_by_hand() -> None:
    experiment = load_recipe(
        "textcraft", {"rollout.turn_tokens": 10, "rollout.trajectory_tokens": 100}
    )
    expert = [
        ExpertEpisode(turns=2, characters=80, actions=8),
        ExpertEpisode(turns=8, characters=160, actions=64),
    ]
    # Horizon 4 leaves 2 + 4 turns, 80 + 80 characters, and 8 + 32 characters of actions.
    assert work(experiment, 20, 4, expert) == Work(20, (60, 80), (100, 800), (400, 2000))
    assert work(experiment, 20, 30, []) == Work(20, (600, 600), (2000, 2000), (2000, 2000))


def test_an_episode_of_the_expert_is_measured() -> None:
    world = load_world("textcraft")
    episode = play_expert(world, world.tasks("wood-test")[0])
    assert 1 <= episode.turns < 10
    assert 0 < episode.actions < episode.characters


@pytest.mark.parametrize("off_policy", [0, 1])
def test_a_measured_speed_gives_the_time_of_every_phase(off_policy: int) -> None:
    speed = MeasuredSpeed(share=0.5, rollout=0.001, update=0.002)
    recipe = load_recipe("textcraft", {"rollout.max_off_policy_steps": off_policy})
    text = plan(recipe, InfraSettings(), measured=speed)
    table = text[text.index("per step") :]
    # 12 steps of 384 episodes of 2 turns, 12 of 3 turns and 16 of 4 turns, 0.003 s each. A rollout
    # that overlaps an update is measured as the seconds that the trainer waited, so both add up.
    assert table.splitlines()[-3].split()[-2:] == ["2.4", "min"]
