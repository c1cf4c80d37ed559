"""What a recipe comes to before it is run: its phases, and the turns and tokens that it plays.

python -m flows.plan RECIPE [--gpus 8 --gpu-memory 80] [--field.path value ...]
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.command import parse_recipe, positive, recipe_parser

    PARSER = recipe_parser("python -m flows.plan", "Say what a recipe comes to, without running it.")
    PARSER.add_argument("--gpus", type=positive, metavar="N", help="plan the memory of so many GPUs (default: this machine's)")
    PARSER.add_argument("--gpu-memory", type=float, metavar="GB", help="of each of them (default: 80, or this machine's)")
    GIVEN, OVERRIDES = parse_recipe(PARSER)

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, infra_settings
from configs.recipe import RecipeError, load_recipe
from configs.task_selection import TaskSelection, indices
from environments.environment import WorldError
from environments.registry import load_world
from flows.gpu_memory import asked_machine, memory_section
from tasks.curriculum.horizon import phases
from tasks.curriculum.work import ExpertEpisode, Work, phase_work, play_expert, work
from tasks.evaluation.tables import aligned
from tasks.training.memory_plan import Machine

EXPERT_TASKS = 16
EXPERT_SECONDS = 30.0
"""Where the expert is slow, fewer tasks are played: no more is begun after so many seconds."""


def plan(experiment: Experiment, infrastructure: InfraSettings, machine: Machine | None = None) -> str:
    """The whole plan as text, section by section; with a machine also what its GPUs will hold."""
    sections = [section(experiment, infrastructure) for section in SECTIONS]
    if machine is not None:
        sections.append(memory_section(experiment, machine)[0])
    return "\n\n".join(sections)


def work_section(experiment: Experiment, infrastructure: InfraSettings) -> str:
    """The phases of the training and the evaluations, with the turns and tokens of each."""
    evaluation, schedule = experiment.evaluation, phases(experiment, {})
    train, note = expert_episodes(experiment, experiment.environment.train_tasks)
    held_out, _ = expert_episodes(experiment, evaluation.tasks)
    amounts = [phase_work(experiment, phase, train.episodes) for phase in schedule]
    rows = [
        [f"phase {phase.number}", f"{phase.first_step + 1}-{phase.end_step}", phase.horizons.partition(" ")[2], *_cells(amount)]
        for phase, amount in zip(schedule, amounts, strict=True)
    ]
    rows.append(["training", f"1-{experiment.algorithm.steps}", "", *_cells(_sum(amounts))])
    n_evaluations = 1 + (len(schedule) if evaluation.each_phase else 1)
    if n_tasks := min(held_out.n_tasks, evaluation.n_tasks or held_out.n_tasks):
        amount = work(experiment, n_evaluations * n_tasks * evaluation.samples, evaluation.horizon, held_out.episodes)
        rows.append([f"{n_evaluations} evaluations", "", str(evaluation.horizon), *_cells(amount)])
    lines = [aligned(["", "steps", "horizon", "episodes", "turns", "tokens of the policy", "tokens"], rows), note]
    if experiment.curriculum.looks_back:
        lines.append(f"{experiment.curriculum.kind} decides on its phases while training: this is what it comes to if it never advances.")
    return "\n".join(lines)


SECTIONS: tuple[Callable[[Experiment, InfraSettings], str], ...] = (work_section,)
"""What is said of a recipe, in order: each is a function of the recipe and of where it would run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Episodes of the expert on some tasks of a list, and how many tasks it holds (0 where that is not known here)."""

    episodes: list[ExpertEpisode]
    n_tasks: int


def expert_episodes(experiment: Experiment, tasks: TaskSelection) -> tuple[Sample, str]:
    """Episodes of the world's expert on a sample of a task list; and where the estimate comes from, in words."""
    began, played, chosen = time.monotonic(), list[ExpertEpisode](), list[int]()
    try:
        world = load_world(experiment.environment.name, experiment.environment.rules)
        chosen = list(world.tasks(tasks)) if isinstance(tasks, str) else indices(tasks)
        for task in chosen[:: max(1, len(chosen) // EXPERT_TASKS)][:EXPERT_TASKS]:
            if time.monotonic() - began < EXPERT_SECONDS:
                played.append(play_expert(world, task))
    except (ImportError, WorldError) as problem:
        nothing = Sample([], len(chosen))
        return nothing, f"Turns and tokens are the most that the recipe allows: the world's expert cannot play here ({problem})."
    lengths = sorted(each.turns for each in played)
    return Sample(played, len(chosen)), (
        f"From what {len(played)} episodes of the expert come to ({lengths[0]} to {lengths[-1]} turns; 4 characters taken for a token)\n"
        "to the most that horizon, rollout.turn_tokens and rollout.trajectory_tokens allow."
    )


def _cells(amount: Work) -> list[str]:
    return [f"{amount.episodes:,}", _range(amount.turns), _range(amount.policy_tokens), _range(amount.tokens)]


def _sum(amounts: Sequence[Work]) -> Work:
    def total(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return sum(low for low, _ in pairs), sum(high for _, high in pairs)

    return Work(
        sum(a.episodes for a in amounts),
        total([a.turns for a in amounts]),
        total([a.policy_tokens for a in amounts]),
        total([a.tokens for a in amounts]),
    )


def _range(pair: tuple[int, int]) -> str:
    low, high = pair
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


if __name__ == "__main__":
    try:
        MACHINE = asked_machine(infra_settings(), GIVEN.gpus, GIVEN.gpu_memory)
        print(plan(load_recipe(GIVEN.recipe, OVERRIDES), infra_settings(), MACHINE))
    except RecipeError as problem:
        raise SystemExit(f"python -m flows.plan: {problem}") from None
