"""Random trajectories like those of a rollout, trainers for them, and a batch source.

The trajectories have several turns and varying lengths. Some are truncated, and states repeat.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.algorithm import ALGORITHMS
from configs.experiment import Experiment
from configs.launch import Sharding
from configs.recipe import load_recipe
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.tracking.step_metrics_file import Steps
from tasks.training.implementations import trainer_class
from tasks.training.messages import TrainerJob
from tasks.training.rank_watch import PART_S, Heartbeats
from tasks.training.recorded_groups import RecordedGroups
from tasks.training.train_loop import BatchSource, Collected, Plan, TrainLoop

GROUPS, MEMBERS = 4, 4
OLDER = -1
"""A policy version before the first step.

The noise of the log-probabilities then counts as staleness, not as an engine out of sync.
"""


def small_experiment(
    lora: dict[str, int] | None = None, attention: str | None = None, **algorithm: Any
) -> Experiment:
    """Load the TextCraft recipe with batches of GROUPS x MEMBERS and without gradient clipping.

    `__` in the names of `algorithm` stands for the dot of a field name.
    """
    fields = {
        "steps": 4,
        "mini_batches": 1,
        "warmup_steps": 0,
        "max_gradient_norm": 1e9,
        "learning_rate": 1e-4,
        **algorithm,
    }
    if "loss_aggregation" in ALGORITHMS.find(fields.get("name", "grpo")).model_fields:
        fields = {"loss_aggregation": "tokens", **fields}
    overrides = {f"algorithm.{name.replace('__', '.')}": value for name, value in fields.items()}
    return load_recipe(
        "textcraft",
        {
            **overrides,
            "policy.lora": lora,
            "policy.attn_implementation": attention,
            "rollout.tasks_per_step": GROUPS,
            "rollout.group_size": MEMBERS,
        },
    )


def recorded_trajectories(
    policy: str, seed: int, noise: float = 0.2, step: int = 0, rows: bool = False
) -> list[Trajectory]:
    """Return GROUPS x MEMBERS random trajectories.

    Args:
        policy: Folder of the policy.
        seed: Seed of the trajectories, together with `step`.
        noise: Standard deviation of the noise that is added to the policy's log-probabilities, so
            that ratios are clipped.
        step: Training step of the trajectories.
        rows: Whether about half of the later turns start a new row with their own context.
    """
    random = Random(f"{seed} {step}")
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    size = model.config.vocab_size
    made = []
    for group in range(GROUPS):
        prompt = [random.randrange(size) for _ in range(random.randint(3, 9))]
        for member in range(MEMBERS):
            t = Trajectory(
                "textcraft",
                group,
                group,
                member,
                0,
                4,
                step,
                "vllm",
                prompt=prompt,
                first_observation="start",
            )
            number = random.randint(1, 4)
            for place in range(number):
                tokens = [random.randrange(size) for _ in range(random.randint(1, 5))]
                answer = (
                    [random.randrange(size) for _ in range(random.randint(1, 6))]
                    if place + 1 < number
                    else []
                )
                reward = (
                    random.choice([0.0, 0.25])
                    if place + 1 < number
                    else float(random.random() < 0.5)
                )
                t.turns.append(
                    Turn(
                        tokens,
                        [],
                        "look",
                        random.choice("abc"),
                        answer,
                        reward,
                        policy_version=OLDER,
                    )
                )
                if rows and place and random.random() < 0.5:
                    t.turns[-2].observation_tokens, t.turns[-1].context = (
                        [],
                        [random.randrange(size) for _ in range(random.randint(2, 8))],
                    )
            t.outcome = random.choice([Outcome.SUCCESS, Outcome.FINISHED, Outcome.TRUNCATED])
            made.append(with_probabilities(t, model, random, noise))
    return made


@torch.no_grad()
def with_probabilities(
    trajectory: Trajectory, model: Any, random: Random, noise: float
) -> Trajectory:
    """Set the log-probabilities of the policy's tokens, with noise, and return the trajectory."""
    for row in trajectory.rows:
        tokens, begin = torch.tensor([row.prompt + row.completion]), len(row.prompt)
        logps = (
            torch.log_softmax(model(input_ids=tokens).logits[0, :-1], dim=-1)
            .gather(1, tokens[0, 1:].unsqueeze(1))
            .squeeze(1)
        )
        for turn, end in zip(row.turns, row.turn_ends, strict=True):
            place = begin - 1 + end + 1 - len(turn.tokens)
            turn.log_probabilities = [
                float(logps[place + i]) + random.gauss(0, noise) for i in range(len(turn.tokens))
            ]
    return trajectory


def trainer_of(
    experiment: Experiment,
    policy: str,
    folder: Path,
    resume: Path | None = None,
    sharding: Sharding = "none",
) -> Any:
    """Return the algorithm's trainer after `prepare`."""
    trainer = trainer_class(experiment.algorithm)(
        experiment, policy, AutoTokenizer.from_pretrained(policy), folder, sharding
    )
    trainer.prepare(resume)
    return trainer


def contexts(trajectory: Trajectory) -> list[list[int]]:
    """Return the token ids before each turn, row by row."""
    found = []
    for row in trajectory.rows:
        tokens = list(row.prompt)
        for turn in row.turns:
            found.append(list(tokens))
            tokens += [*turn.tokens, *turn.observation_tokens]
    return found


def recorded_groups(
    recording: Path, policy: str, folder: Path, **algorithm: Any
) -> tuple[Any, RecordedGroups]:
    """Return an algorithm's trainer and its batches from a recording of the endpoint."""
    experiment = small_experiment(trajectories=str(recording), **algorithm)
    worker: Any = SimpleNamespace(
        processes=SimpleNamespace(num_processes=1, process_index=0, is_main_process=True),
        sleep=lambda: None,
        metrics=dict,
    )
    trainer = trainer_of(experiment, policy, folder)
    return trainer, RecordedGroups(
        TrainerJob.model_construct(experiment=experiment), worker, trainer
    )


class RecordedBatches:
    """A `BatchSource` of random trajectories, which by default differ in each step."""

    def __init__(
        self, policy: str, share: slice = slice(None), batch: list[Trajectory] | None = None
    ) -> None:
        """
        Args:
            policy: Folder of the policy.
            share: Groups of this process.
            batch: Trajectories of every step, instead of random ones.
        """
        self.policy, self.share, self.batch = policy, share, batch

    def plan(self, step: int, history: Steps) -> Plan:
        return Plan(step, 4, [])

    def collect(self, plan: Plan) -> Collected:
        if self.batch is not None:
            return Collected(self.batch)
        return Collected(
            [
                t
                for t in recorded_trajectories(self.policy, 0, step=plan.step)
                if t.group in range(GROUPS)[self.share]
            ]
        )

    def load_engine(self, step: int) -> dict[str, float]:
        return {}


def train(trainer: Any, source: BatchSource, until: int, step: int = 0) -> list[dict[str, float]]:
    """Train from step `step` to step `until`, save a checkpoint, and return each step's metrics."""
    loop = TrainLoop(trainer.experiment, trainer, source, Heartbeats(PART_S["cpu"]), 0.0)
    metrics = [loop.train_step(each, {}) for each in range(step, until)]
    trainer.save(until, {})
    return metrics
