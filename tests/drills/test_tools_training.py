"""Tests of training with tool calls: cloning, RL, several rows per episode, and mixtures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from configs.collection import Collection, Source
from configs.experiment import Rollout
from configs.infrastructure import InfraSettings
from configs.mixture import member_of
from environments.protocol import WorldInfo
from environments.registry import load_world
from tasks.agents.agent_factory import open_agent
from tasks.agents.chat_format import ChatFormat
from tasks.rollout.collect_to_disk import collect_to_disk
from tasks.rollout.resumable_writer import ResumableTrajectoryWriter
from tasks.rollout.trajectory import Outcome
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.starter.starting_model import build_model
from tasks.training.task_order import evaluation_plans
from tests.support.playing import starting
from tests.support.shipped_templates import template_of, tokenizer_with
from tests.support.small_runs import finish, folder, start
from tests.support.small_training import STEPS, train
from tests.support.tiny_policy import TINY

FIELDS = {
    "policy.action_format": "tools",
    "rollout.engine": "transformers",
    "rollout.tasks_per_step": 2,
    "rollout.trajectory_tokens": 8192,
    "rollout.turn_tokens": 24,
}


def tool_policy(folder: Path, template: str = "qwen2_5") -> str:
    """Save a tiny random policy with the chat template of Qwen2.5 or another model."""
    tokenizer = tokenizer_with(template_of(template))
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    # Beside a model's configuration, another tokenizer class is loaded, which adds a token.
    for _ in range(2):
        build_model(TINY, tokenizer, 0).save_pretrained(folder)  # type: ignore[arg-type]
        tokenizer = AutoTokenizer.from_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_a_model_is_trained_by_tool_calls(tmp_path: Path, state_dir: Path) -> None:
    world, policy = load_world("textcraft"), tool_policy(tmp_path / "policy")
    rollout = Rollout(trajectory_tokens=8192, turn_tokens=512)
    source = Source(kind="oracle", action_format="tools", tokenizer=policy, instruction=False)
    collection = Collection(
        environment="textcraft", source=source, tasks="wood-train", horizon=20, rollout=rollout
    )  # type: ignore[arg-type]
    with (
        starting("textcraft", state_dir) as started,
        open_agent(
            collection, WorldInfo("textcraft", world.version, "", {}, tools=[*world.tools])
        ) as agent,
    ):
        writer = ResumableTrajectoryWriter(tmp_path / "demonstrations", {}, 1)
        collect_to_disk(
            collection,
            evaluation_plans(list(world.tasks("wood-train"))[:8], 1, 0),
            agent,
            [started().url],
            writer,
        )

    form = ChatFormat(AutoTokenizer.from_pretrained(policy), "tools", None, tools=world.tools)
    demonstrated = [
        t
        for part in (tmp_path / "demonstrations").glob("part-*.parquet")
        for t in read_trajectories(part)
    ]
    assert {t.outcome for t in demonstrated} == {Outcome.SUCCESS}
    assert all(
        form.action_in(form.text(turn.tokens)) == turn.action
        for t in demonstrated
        for turn in t.turns
    )

    cloning = {"algorithm.name": "sft", "algorithm.trajectories": str(tmp_path / "demonstrations")}
    (tmp_path / "cloned").mkdir()
    cloned = train(
        policy,
        tmp_path / "cloned",
        state_dir,
        InfraSettings(trainer_processes=1),
        {**FIELDS, **cloning},
    )
    assert cloned[-1].metrics["update/loss"] < cloned[0].metrics["update/loss"]

    checkpoint = str(tmp_path / "cloned" / "checkpoints" / f"step-{STEPS:06d}")
    (tmp_path / "trained").mkdir()
    trained = train(
        checkpoint, tmp_path / "trained", state_dir, InfraSettings(trainer_processes=1), FIELDS
    )
    assert [event.step for event in trained] == list(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        for trajectory in read_trajectories(
            tmp_path / "trained" / "rollouts" / f"step-{step:06d}.parquet"
        ):
            tokens = trajectory.prompt
            assert tokens == form.prompt(trajectory.first_observation)
            for turn in trajectory.turns:
                assert turn.malformed or form.action_in(form.text(turn.tokens)) == turn.action
                assert turn.observation_tokens in ([], form.reply(turn.observation, turn.tokens))
                assert all(math.isfinite(x) for x in turn.log_probabilities)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{"policy.thinking": "strip"}, {"policy.compaction": "drop", "rollout.trajectory_tokens": 400}],
)
def test_a_model_is_trained_on_episodes_of_several_rows(
    fields: dict[str, object], tmp_path: Path, state_dir: Path
) -> None:
    """Train, where a step fails if trainer and engine disagree on a row's log-probabilities."""
    policy = tool_policy(tmp_path / "policy", "qwen3")
    done = train(
        policy,
        tmp_path,
        state_dir,
        InfraSettings(trainer_processes=1),
        {**FIELDS, "policy.action_format": "bare", **fields},
    )
    assert [event.step for event in done] == list(range(1, STEPS + 1))
    assert all(event.metrics["rollout/failed"] == 0 for event in done)
    rows = 0
    for step in range(1, STEPS + 1):
        for trajectory in read_trajectories(tmp_path / "rollouts" / f"step-{step:06d}.parquet"):
            rows = max(rows, len(trajectory.rows))
            assert [
                token for row in trajectory.rows for turn in row.turns for token in turn.tokens
            ] == [token for turn in trajectory.turns for token in turn.tokens]
    assert rows > 1


@pytest.mark.slow
def test_each_episode_of_a_mixture_has_the_tools_of_its_world(
    tmp_path: Path, prefect_api: dict[str, str]
) -> None:
    policy, world = tool_policy(tmp_path / "policy"), "textcraft+babyai"
    run = start(
        tmp_path,
        policy,
        prefect=prefect_api,
        environment__name=world,
        environment__train_tasks="train",
        environment__n_train_tasks=4,
        evaluation__tasks="validation",
        evaluation__final_tasks=[],
        policy__action_format="tools",
        rollout__engine="transformers",
        rollout__tasks_per_step=2,
        rollout__trajectory_tokens=8192,
        algorithm__steps=2,
        curriculum__horizons=[2],
    )
    finish(run, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    played = {
        (member_of(world, trajectory.task)[0], tokenizer.decode(trajectory.prompt))
        for step in (1, 2)
        for trajectory in read_trajectories(
            folder(tmp_path) / "rollouts" / f"step-{step:06d}.parquet"
        )
    }
    assert {own for own, _ in played} == {"textcraft", "babyai"}
    for own, prompt in played:
        for name in ("textcraft", "babyai"):
            shown = {f'"name": "{tool.name}"' in prompt for tool in load_world(name).tools}
            assert shown == {name == own}
