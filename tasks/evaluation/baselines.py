"""Baselines of scripted policies: random valid actions, nearest-neighbour replay and the oracle.

    python -m tasks.evaluation.baselines WORLD --tasks LIST [--train LIST] [--horizon N]

They are played in this process, without servers. The results are kept on disk, since every table of
results includes them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

from configs.rules import Rules
from environments.environment import Environment, OracleError, World
from environments.registry import load_world
from tasks.agents.nearest_neighbour_replay import NearestNeighbourReplay
from tasks.evaluation.benchmark import EvaluationFileError, EvaluationResult, evaluate, read_evaluation, write_evaluation
from tasks.evaluation.report import partly_rewarded, success_share
from tasks.rollout.episode import is_success
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

RANDOM, REPLAY, ORACLE = "random valid action", "nearest-neighbour replay", "oracle"
SAMPLES = {RANDOM: 4, REPLAY: 1, ORACLE: 1}
"""Episodes per task. Replay and oracle are deterministic."""
BASELINE_HEADER = ("tasks", "n", *SAMPLES, "oracle's turns")


def baselines(
    world_name: str,
    tasks: Sequence[int],
    train_tasks: Sequence[int],
    horizon: int,
    folder: Path,
    names: Sequence[str] = tuple(SAMPLES),
    rules: Rules = "ours",
) -> dict[str, EvaluationResult]:
    """Return the results of scripted policies on some tasks, reusing those in `folder`.

    Args:
        world_name: A world of the registry, or module:Class.
        tasks: Task indices.
        train_tasks: Tasks among which the replay searches its nearest neighbour.
        horizon: Turn limit.
        folder: Folder of the results.
        names: Names of the policies. Those that the world cannot support are left out.
        rules: Rules of the world.
    """
    world = load_world(world_name, rules)
    facts = json.dumps([world.name, world.version, list(tasks), list(train_tasks), horizon, SAMPLES])
    path = folder / f"{world.name.replace(':', '.')}-{sha256(facts.encode()).hexdigest()[:16]}"
    found: dict[str, EvaluationResult] = {}
    for name in names:
        file = path.with_name(f"{path.name}-{name.replace(' ', '-')}.json")
        try:
            found[name] = read_evaluation(file)
        except (FileNotFoundError, EvaluationFileError):
            if can_play(world, name):
                found[name] = play(world, name, tasks, train_tasks, horizon)
                write_evaluation(file, found[name])
    return found


def can_play(world: World, name: str) -> bool:
    """Return whether a world provides the data that a scripted policy needs."""
    needed = {RANDOM: "valid_actions", REPLAY: "objective", ORACLE: "oracle_action"}[name]
    environment = world.create()
    environment.close()
    return needed in environment.offers


def play(world: World, name: str, tasks: Sequence[int], train_tasks: Sequence[int], horizon: int) -> EvaluationResult:
    """Play one scripted policy, see `baselines`.

    An episode ends without success when the script has no further action, even before the first
    one. Tasks that a policy cannot solve therefore count against it.
    """
    environment = world.create()
    replay = NearestNeighbourReplay(world, train_tasks) if name == REPLAY else None
    needed = world.success_score
    played = []
    try:
        for group, task in enumerate(tasks):
            for member in range(SAMPLES[name]):
                environment.reset(task)
                trajectory = Trajectory(world.name, task, group, member, 0, horizon, 0, name)
                script = scripted(name, environment, replay, Random(f"{name} {task} {member}"))
                _play(environment, script, trajectory, horizon, needed)
                played.append(trajectory)
    finally:
        environment.close()
        if replay is not None:
            replay.close()
    tags = {task: world.tag(task) for task in tasks}
    return evaluate(played, label=name, step=0, horizon=horizon, tags=tags if any(tags.values()) else None)


def scripted(name: str, environment: Environment, replay: NearestNeighbourReplay | None, random: Random) -> Iterator[str]:
    """Yield the actions of a scripted policy in the task that `environment` has just begun."""
    if replay is not None:
        yield from replay.actions(environment.objective)
        return
    while True:
        yield environment.oracle_action() if name == ORACLE else random.choice(environment.valid_actions())


def _play(environment: Environment, script: Iterator[str], trajectory: Trajectory, horizon: int, needed: float) -> None:
    trajectory.outcome = Outcome.TRUNCATED
    for _ in range(horizon):
        try:
            action = next(script, None)
        except OracleError as error:
            trajectory.reason = str(error)
            action = None
        if action is None:
            return
        step = environment.step(action)
        trajectory.turns.append(Turn([], [], action, step.observation, reward=step.reward, refused=step.refused))
        if step.done:
            trajectory.outcome = Outcome.SUCCESS if is_success(trajectory.reward, needed) else Outcome.FINISHED
            return


def baseline_line(results: Mapping[str, EvaluationResult]) -> str:
    """Format the results of scripted policies as a sentence for below a table.

    The text is empty without results.
    """
    if not results:
        return ""
    cells = ", ".join(f"{name} {_cell(result)}" for name, result in results.items())
    return f"Baselines without learning on the same tasks and horizon: {cells}."


def baseline_table(rows: Mapping[str, Mapping[str, EvaluationResult]]) -> str:
    """Build the Markdown table of scripted policies.

    Args:
        rows: Maps each task list to the results of the policies.
    """
    lines = [f"| {' | '.join(BASELINE_HEADER)} |", "|---|" + "---:|" * (len(BASELINE_HEADER) - 1)]
    lines += [f"| {' | '.join(baseline_row(name, results))} |" for name, results in rows.items()]
    return "\n".join(lines) + "\n"


def baseline_row(name: str, results: Mapping[str, EvaluationResult]) -> list[str]:
    """Return the cells for `BASELINE_HEADER`: the results of scripted policies on some tasks.

    A cell is empty if the world cannot support the policy.
    """
    cells = [_cell(results[policy]) if policy in results else "" for policy in SAMPLES]
    turns = f"{results[ORACLE].turns:.1f}" if ORACLE in results else ""
    return [name, str(next(iter(results.values())).success.n), *cells, turns]


def _cell(result: EvaluationResult) -> str:
    score = f", score {result.reward.value:.2f}" if partly_rewarded(result) else ""
    return success_share(result) + score


def main() -> None:
    """Print the results of scripted policies on some task lists of a world."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.evaluation.baselines",
        description=__doc__.split("\n\n")[0],
        epilog="example: python -m tasks.evaluation.baselines textcraft --tasks wood-test deep-test --horizon 16",
    )
    parser.add_argument("world", help="name of a world (see `agentgym worlds`) or module:Class")
    parser.add_argument("--tasks", nargs="+", default=["test"], metavar="LIST", help="task lists (default: test)")
    parser.add_argument("--train", default="train", metavar="LIST", help="task list of the replay (default: %(default)s)")
    parser.add_argument("--n-tasks", type=int, metavar="N", help="number of tasks of each list, evenly spaced (default: all)")
    parser.add_argument("--horizon", type=int, default=30, help="turn limit (default: %(default)s)")
    parser.add_argument("--policies", nargs="+", choices=sorted(SAMPLES), default=list(SAMPLES), help="policies to play (default: all)")
    parser.add_argument("--folder", type=Path, default=Path("runs/baselines"), help="folder of the results (default: %(default)s)")
    chosen = parser.parse_args()
    world, rows = load_world(chosen.world), {}
    train = world.tasks(chosen.train)
    for name in chosen.tasks:
        tasks = world.tasks(name)
        tasks = tasks[:: max(1, len(tasks) // chosen.n_tasks)][: chosen.n_tasks] if chosen.n_tasks else tasks
        rows[name] = baselines(chosen.world, tasks, train, chosen.horizon, chosen.folder, chosen.policies)
    sys.stdout.write(baseline_table(rows))


if __name__ == "__main__":
    main()
