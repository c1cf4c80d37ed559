"""Run folders like those of training, with episodes that mix expert and useless actions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from configs.recipe import load_recipe
from configs.run_name import run_name
from environments.environment import Environment
from environments.registry import load_world
from tasks.evaluation.benchmark import evaluate, write_evaluation
from tasks.rollout.train_sample_parquet import FOLDER, TrainSampleTokens, write_train_samples
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import write_trajectories
from tasks.tracking.run_folder import FINISHED, RunFolder
from tasks.tracking.timeline import TIMELINE, append_spans


def played(
    world_name: str,
    task: int,
    *,
    skill: float,
    horizon: int,
    group: int = 0,
    member: int = 0,
    seed: int = 0,
) -> Trajectory:
    """Play an episode. Each action is the expert's with probability `skill`, else a useless one."""
    world = load_world(world_name)
    session: Environment = world.create()
    chance = random.Random(f"{world_name} {task} {seed} {member}")
    trajectory = Trajectory(world_name, task, group, member, seed, horizon, 0, "test")
    trajectory.first_observation = session.reset(task)
    try:
        while len(trajectory.turns) < horizon:
            action = (
                session.oracle_action()
                if chance.random() < skill
                else chance.choice(["inventory", "look around", "turn left", "wait"])
            )
            step = session.step(action)
            turn = Turn(
                [],
                [],
                action,
                step.observation,
                reward=step.reward,
                message=action,
                generate_seconds=0.01,
                environment_seconds=0.001,
            )
            trajectory.turns.append(turn)
            if step.done:
                trajectory.outcome = (
                    Outcome.SUCCESS if trajectory.reward > 0.999 else Outcome.FINISHED
                )
                return trajectory
        trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, "horizon"
        return trajectory
    finally:
        session.close()


def recorded_run(
    runs: Path,
    *,
    seed: int = 0,
    method: str = "grpo",
    skills: tuple[float, ...] = (0.2, 0.6, 0.9),
    tasks: int = 6,
) -> RunFolder:
    """Write a TextCraft run whose phases have one step and one evaluation each.

    `skills` holds the expert share of the actions in each phase.
    """
    experiment = load_recipe(
        "textcraft",
        {"algorithm.name": method, "algorithm.steps": len(skills), "seeds.training": seed},
    )
    folder = RunFolder(runs, experiment)
    with folder.claimed():
        folder.begin(run_name(experiment))
        write_run(folder, numbers_of(tasks), skills, seed)
        folder.mark_done(FINISHED)
    return folder


def numbers_of(tasks: int) -> Sequence[int]:
    """Return the first held-out tasks."""
    return load_world("textcraft").tasks("wood-test")[:tasks]


def write_run(
    folder: RunFolder, numbers: Sequence[int], skills: Sequence[float], seed: int
) -> None:
    """Write the files of a run into its folder."""
    for step, skill in enumerate((skills[0], *skills)):
        name = "start" if step == 0 else f"phase-{step}"
        evaluation = [
            played("textcraft", task, skill=skill, horizon=8, group=group, member=member, seed=seed)
            for group, task in enumerate(numbers)
            for member in range(2)
        ]
        for each in evaluation:
            each.policy_version = step
        write_trajectories(folder.evaluation(name).with_suffix(".parquet"), evaluation)
        write_evaluation(
            folder.evaluation(name), evaluate(evaluation, label=name, step=step, horizon=8)
        )
        if step:
            batch = [
                played(
                    "textcraft",
                    task,
                    skill=skill,
                    horizon=8,
                    group=group,
                    member=member,
                    seed=seed + 100,
                )
                for group, task in enumerate(numbers[:3])
                for member in range(4)
            ]
            learned_from(batch, folder.path, step)
            write_trajectories(folder.path / "rollouts" / f"step-{step:06d}.parquet", batch)
            success = sum(each.succeeded for each in batch) / len(batch)
            metrics = {
                "rollout/success": success,
                "rollout/horizon": 2.0 + 2 * step,
                "rollout/truncated_share": 1 - success,
                "rollout/seconds": 2.0,
            }
            folder.add_metrics(
                step,
                metrics
                | {"update/seconds": 3.0, "rollout/turns": 5.0, "rollout/entropy": 1.0 / step},
            )


def learned_from(batch: Sequence[Trajectory], folder: Path, step: int) -> None:
    """Add tokens and times to a step's trajectories, and write its training data and timeline."""
    zero, samples = 1_700_000_000.0 + 100 * step, []
    for number, each in enumerate(batch):
        each.policy_version, each.began = step - 1, zero + number / 100
        for place, turn in enumerate(each.turns):
            turn.tokens = list(range(1, 4 + len(turn.action) % 3))
            turn.log_probabilities = [-0.1 * token for token in turn.tokens]
            turn.began, turn.policy_version = each.began + 0.1 * place, step - 1
        group = [other.reward for other in batch if other.group == each.group]
        advantage = each.reward - sum(group) / len(group)
        sampled = np.array(
            [value for turn in each.turns for value in turn.log_probabilities], np.float32
        )
        ones = np.ones_like(sampled)
        samples.append(
            TrainSampleTokens(
                each.group,
                each.member,
                advantage * ones,
                ones > 0,
                sampled + np.float32(0.01),
                0.5 * ones,
            )
        )
    write_train_samples(folder / FOLDER / f"step-{step:06d}.parquet", samples)
    append_spans(
        folder / TIMELINE,
        step,
        {
            "collect": (zero, zero + 2),
            "update": (zero + 2, zero + 4),
            "sync": (zero + 4, zero + 4.5),
        },
    )
