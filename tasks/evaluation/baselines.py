"""Baselines of scripted policies: random and most similar actions, replay, a world's scripts, the oracle.

    python -m tasks.evaluation.baselines WORLD --tasks LIST [--train LIST] [--horizon N]

They are played in this process, without servers. The results are kept on disk, since every table of
results includes them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

from configs.rules import Rules
from environments.environment import Environment, OracleError, UnknownWorldError, World
from environments.registry import load_world
from environments.task_lists import UnknownTaskListError
from tasks.agents.nearest_neighbour_replay import NearestNeighbourReplay
from tasks.evaluation.benchmark import (
    EvaluationFileError,
    EvaluationResult,
    evaluate,
    read_evaluation,
    write_evaluation,
)
from tasks.evaluation.report import partly_rewarded, success_share
from tasks.evaluation.tables import markdown
from tasks.rollout.episode import outcome_of
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

RANDOM, NO_REPEAT = "random valid action", "random without repeats"
SIMILAR, REPLAY, ORACLE = "most like the mission", "nearest-neighbour replay", "oracle"
NEEDS = {
    RANDOM: {"valid_actions"},
    NO_REPEAT: {"valid_actions"},
    SIMILAR: {"valid_actions", "objective"},
    REPLAY: {"objective"},
    ORACLE: {"oracle_action"},
}
"""Scripted policies of all worlds, with the optional members that they need.

- `NO_REPEAT` draws from the valid actions that the episode has not had yet.
- `SIMILAR` takes, of these, the one that shares the largest part of its words with the objective.
- `REPLAY` see `NearestNeighbourReplay`.
"""
SAMPLES = {RANDOM: 4, NO_REPEAT: 4}
"""Episodes per task. All other policies are deterministic and play one."""
VERSIONS = {REPLAY: 2}
"""Version of each policy's code, 1 if absent. Results of an earlier version are not reused."""


def baselines(
    world_name: str,
    tasks: Sequence[int],
    train_tasks: Sequence[int],
    horizon: int,
    folder: Path,
    names: Sequence[str] = (),
    rules: Rules = "ours",
    success_score: float | None = None,
) -> dict[str, EvaluationResult]:
    """Return the results of scripted policies on some tasks, reusing those in `folder`.

    Args:
        world_name: A world of the registry, or module:Class.
        tasks: Task indices.
        train_tasks: Tasks among which the replay searches its nearest neighbour.
        horizon: Turn limit.
        folder: Folder of the results.
        names: Names of the policies. Empty: all that the world supports, its own scripts included.
        rules: Rules of the world.
        success_score: Smallest score of a success. None: the world's own.
    """
    world = load_world(world_name, rules)
    given = [] if success_score is None else [success_score]
    facts = json.dumps(
        [world.name, world.version, list(tasks), list(train_tasks), horizon, SAMPLES, *given]
    )
    path = folder / f"{world.name.replace(':', '.')}-{sha256(facts.encode()).hexdigest()[:16]}"
    found: dict[str, EvaluationResult] = {}
    for name in names or (*NEEDS, *world.scripts):
        version = f"-{VERSIONS[name]}" if name in VERSIONS else ""
        file = path.with_name(f"{path.name}-{name.replace(' ', '-')}{version}.json")
        try:
            found[name] = read_evaluation(file)
        except (FileNotFoundError, EvaluationFileError):
            if can_play(world, name):
                found[name] = play(world, name, tasks, train_tasks, horizon, success_score)
                write_evaluation(file, found[name])
    return found


def can_play(world: World, name: str) -> bool:
    """Return whether a world provides the data that a scripted policy needs."""
    environment = world.create()
    environment.close()
    return name in world.scripts or NEEDS[name] <= environment.offers


def play(
    world: World,
    name: str,
    tasks: Sequence[int],
    train_tasks: Sequence[int],
    horizon: int,
    success_score: float | None = None,
) -> EvaluationResult:
    """Play one scripted policy, see `baselines`.

    An episode ends without success when the script has no further action, even before the first
    one. Tasks that a policy cannot solve therefore count against it.
    """
    environment = world.create()
    replay = NearestNeighbourReplay(world, train_tasks) if name == REPLAY else None
    needed = world.success_score if success_score is None else success_score
    played = []
    try:
        for group, task in enumerate(tasks):
            for member in range(SAMPLES.get(name, 1)):
                observation = environment.reset(task)
                trajectory = Trajectory(world.name, task, group, member, 0, horizon, 0, name)
                if name in world.scripts:
                    script = world.scripts[name](observation)
                else:
                    script = scripted(name, environment, replay, Random(f"{name} {task} {member}"))
                _play(environment, script, trajectory, horizon, needed)
                played.append(trajectory)
    finally:
        environment.close()
        if replay is not None:
            replay.close()
    tags = {task: world.tag(task) for task in tasks}
    return evaluate(
        played, label=name, step=0, horizon=horizon, tags=tags if any(tags.values()) else None
    )


def scripted(
    name: str, environment: Environment, replay: NearestNeighbourReplay | None, random: Random
) -> Generator[str, str, None]:
    """Yield the actions of a scripted policy in the task that `environment` has just begun."""
    if replay is not None:
        for action in replay.actions(environment.objective):
            yield action
        return
    done = set[str]()
    while True:
        if name == ORACLE:
            action = environment.oracle_action()
        else:
            action = _valid_action(name, environment, done, random)
        done.add(action)
        yield action


def _valid_action(name: str, environment: Environment, done: set[str], random: Random) -> str:
    valid = environment.valid_actions()
    new = valid if name == RANDOM else [action for action in valid if action not in done] or valid
    if name != SIMILAR:
        return random.choice(new)
    objective = _words(environment.objective)
    return max(
        new, key=lambda action: len(_words(action) & objective) / len(_words(action) | objective)
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _play(
    environment: Environment,
    script: Generator[str, str, None],
    trajectory: Trajectory,
    horizon: int,
    needed: float,
) -> None:
    trajectory.outcome = Outcome.TRUNCATED
    observation: str | None = None
    for _ in range(horizon):
        try:
            action = next(script) if observation is None else script.send(observation)
        except StopIteration:
            return
        except OracleError as error:
            trajectory.reason = str(error)
            return
        step = environment.step(action)
        observation = step.observation
        trajectory.turns.append(
            Turn([], [], action, step.observation, reward=step.reward, refused=step.refused)
        )
        if step.done:
            trajectory.outcome = outcome_of(trajectory.reward, needed)
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
    return markdown(["policy", *rows], baseline_rows(rows)) + "\n"


def baseline_rows(by_list: Mapping[str, Mapping[str, EvaluationResult]]) -> list[list[str]]:
    """Return one row of cells per scripted policy, and one column per task list.

    The last row holds the oracle's turns. A cell is empty if the world cannot support the policy.
    """
    policies = dict.fromkeys(policy for results in by_list.values() for policy in results)
    found = [
        [
            policy,
            *(_cell(results[policy]) if policy in results else "" for results in by_list.values()),
        ]
        for policy in policies
    ]
    turns = [
        f"{results[ORACLE].turns:.1f}" if ORACLE in results else "" for results in by_list.values()
    ]
    return [*found, ["oracle's turns", *turns]] if any(turns) else found


def _cell(result: EvaluationResult) -> str:
    score = f", score {result.reward.value:.2f}" if partly_rewarded(result) else ""
    return success_share(result) + score


def main() -> None:
    """Print the results of scripted policies on some task lists of a world."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.evaluation.baselines",
        description=__doc__.split("\n\n")[0],
        epilog="example: python -m tasks.evaluation.baselines textcraft --tasks wood-test test --horizon 16",
    )
    parser.add_argument("world", help="name of a world (see `agentgym worlds`) or module:Class")
    parser.add_argument(
        "--tasks", nargs="+", default=["test"], metavar="LIST", help="task lists (default: test)"
    )
    parser.add_argument(
        "--train",
        default="train",
        metavar="LIST",
        help="task list of the replay (default: %(default)s)",
    )
    parser.add_argument(
        "--n-tasks",
        type=int,
        metavar="N",
        help="number of tasks of each list, evenly spaced (default: all)",
    )
    parser.add_argument("--horizon", type=int, default=30, help="turn limit (default: %(default)s)")
    parser.add_argument(
        "--policies", nargs="+", default=[], help="names of the policies to play (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/baselines"),
        help="folder of the results (default: %(default)s)",
    )
    chosen = parser.parse_args()
    try:
        world = load_world(chosen.world)
        train, lists = world.tasks(chosen.train), {each: world.tasks(each) for each in chosen.tasks}
    except (UnknownTaskListError, UnknownWorldError) as unknown:
        parser.error(str(unknown.args[0]))
    known = (*NEEDS, *world.scripts)
    if wrong := [each for each in chosen.policies if each not in known]:
        parser.error(f"--policies: there is no {wrong[0]!r}; use one of: {', '.join(known)}")
    rows = {}
    for name, tasks in lists.items():
        if chosen.n_tasks:
            tasks = tasks[:: max(1, len(tasks) // chosen.n_tasks)][: chosen.n_tasks]
        rows[name] = baselines(
            chosen.world, tasks, train, chosen.horizon, chosen.folder, chosen.policies
        )
    sys.stdout.write(baseline_table(rows))


if __name__ == "__main__":
    main()
