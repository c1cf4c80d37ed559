"""Arms of a study: runs of one experiment that differ only in their seeds.

Arms are compared with each other, paired by seed and by task.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.run_folders import RunFolder, read_recipe
from tasks.evaluation.statistics import UNKNOWN, Estimate, Tally, difference, mean

NAMED = ("algorithm.name", "curriculum.kind", "environment.name")
"""Fields whose values are clear without the field's name. They come first in an arm's name."""
MAX_FIELDS = 6
"""Maximum number of fields in an arm's name, unless more are needed to make it unique."""


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out success after a step: mean over seeds and 95 % interval (Student's t).

    Unknown values are None.
    """

    step: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs that differ only in their seeds.

    Attributes:
        name: Name that distinguishes it from the other arms.
        runs: Its runs, one per seed.
        curve: Held-out success over the steps.
        rise: Success at the end minus success at the start, over seeds.
        end: Success at the end, over seeds.
    """

    name: str
    runs: list[RunFolder]
    curve: list[Point]
    rise: Estimate
    end: Estimate


def arms_of_studies(runs: Path, experiment: str) -> dict[str, str]:
    """Return the arms' names in an experiment's studies: recipe, as `_recipe_key` writes it, to name.

    The studies are read from the runs folder.
    """
    paths = sorted((runs / "studies").glob(f"{glob.escape(experiment)}-*/recipes/*.yaml"))
    return {
        _recipe_key(recipe): path.stem.rpartition("-")[0]
        for path in paths
        if (recipe := read_recipe(path)) is not None
    }


def arms_of(runs: Sequence[RunFolder], study_names: Mapping[str, str]) -> list[Arm]:
    """Group the runs of an experiment into arms.

    An arm has the name that a study gives it, or else the fields in which the arms differ.
    """
    sets: dict[str, list[RunFolder]] = defaultdict(list)
    for run in runs:
        sets[_recipe_key(run.recipe)].append(run)
    flat = {recipe: _flat(json.loads(recipe)) for recipe in sets}
    differing = [
        n
        for n in dict.fromkeys(n for each in flat.values() for n in each)
        if len({repr(f.get(n)) for f in flat.values()}) > 1
    ]
    # Fields below an algorithm or a curriculum are comparable only between arms with the same one.
    below = tuple(
        f"{name.partition('.')[0]}."
        for name in ("algorithm.name", "curriculum.kind")
        if name in differing
    )
    common = [name for name in differing if name not in NAMED and not name.startswith(below)]
    shown = ([name for name in NAMED if name in differing] + common)[:MAX_FIELDS] or differing[:3]
    names = {
        r: study_names.get(r) or ", ".join(_field_label(name, each) for name in shown) or "all runs"
        for r, each in flat.items()
    }
    for recipe, name in [
        (recipe, name) for recipe, name in names.items() if list(names.values()).count(name) > 1
    ]:
        further = (each for each in differing if recipe in study_names or each not in shown)
        names[recipe] = (
            f"{name} ({', '.join(f'{field} {flat[recipe].get(field)}' for field in further)})"
        )
    return sorted(
        (_arm(names[recipe], members) for recipe, members in sets.items()), key=lambda arm: arm.name
    )


def comparable_runs(runs: Sequence[RunFolder]) -> tuple[list[RunFolder], dict[str, str]]:
    """Select the runs that can be compared as arms of a study.

    Returns:
        The finished runs with the most common measurement: the same environment, task list,
            horizon, temperature and samples. Then the folder name of each other run to the reason
            why it is left out.
    """
    finished = [run for run in runs if run.is_finished]
    by_measurement: dict[str, list[RunFolder]] = defaultdict(list)
    for run in finished:
        by_measurement[_measurement(run)].append(run)
    taken = max(by_measurement.values(), key=len, default=[])
    left_out = {run.path.name: "not finished" for run in runs if run not in finished}
    left_out |= {
        run.path.name: f"evaluated differently: {_measurement(run)}"
        for run in finished
        if run not in taken
    }
    return taken, left_out


def _measurement(run: RunFolder) -> str:
    """Return the environment and the evaluation settings of a run."""
    fields = {"world": run.field("environment.name"), "rules": run.field("environment.rules")}
    fields |= {
        name: run.field(f"evaluation.{name}")
        for name in ("tasks", "n_tasks", "samples", "horizon", "temperature")
    }
    return ", ".join(
        f"{name} {_short(value)}" for name, value in fields.items() if value is not None
    )


def _short(value: Any) -> str:
    text = str(value)
    return (
        text
        if len(text) <= 60
        else f"{text[:57]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
    )


def _recipe_key(recipe: Mapping[str, Any]) -> str:
    """Serialise a recipe without its seeds, in canonical form."""
    return json.dumps(
        {name: value for name, value in recipe.items() if name != "seeds"}, sort_keys=True
    )


def _field_label(field: str, recipe: Mapping[str, Any]) -> str:
    """Return a field's value, with the field's name unless the value is clear alone."""
    return (
        str(recipe.get(field))
        if field in NAMED
        else f"{field.rpartition('.')[2]} {recipe.get(field)}"
    )


@dataclass(frozen=True, slots=True)
class BestArm:
    """The arm with the highest final success, and its lead over the second, paired by seed."""

    arm: Arm
    second: Arm
    gap: Estimate


def best_arm(arms: Sequence[Arm]) -> BestArm | None:
    """Return the two best arms at the end. None if fewer than two were evaluated after training."""
    measured = sorted((arm for arm in arms if arm.end.n), key=lambda arm: -arm.end.value)
    return (
        BestArm(measured[0], measured[1], difference_by_seed(measured[1], measured[0]))
        if len(measured) > 1
        else None
    )


def difference_by_seed(first: Arm, other: Arm) -> Estimate:
    """Return final success of `other` minus that of `first`, paired by seed.

    The estimate is the mean and its 95 % interval (Student's t) over the seeds of both.
    """
    ends = [{_seed(run): _end(run) for run in arm.runs} for arm in (first, other)]
    pairs = [(ends[0][seed], ends[1][seed]) for seed in sorted(ends[0].keys() & ends[1].keys())]
    return mean(b - a for a, b in pairs if a is not None and b is not None)


def difference_by_task(before: Mapping[str, Any], after: Mapping[str, Any]) -> Estimate:
    """Return success in `after` minus success in `before`, paired by task.

    The estimate has a 95 % interval (see `tasks.evaluation`). It is unknown if an evaluation is
    incomplete.
    """
    if before.get("failed") or after.get("failed"):
        return UNKNOWN
    return difference(tallies(before), tallies(after))


def tallies(evaluation: Mapping[str, Any]) -> dict[int, Tally]:
    """Return task index to successes and episodes of a stored evaluation."""
    return {int(task): Tally(*tally) for task, tally in evaluation.get("tallies", {}).items()}


def final_evaluation(run: RunFolder) -> dict[str, Any] | None:
    """Return the last evaluation of a run, or None if only the initial policy was evaluated."""
    found = [
        evaluation for evaluation in run.evaluations().values() if evaluation.get("step", 0) > 0
    ]
    return found[-1] if found else None


def _arm(name: str, runs: Sequence[RunFolder]) -> Arm:
    successes = [found for run in runs if (found := _by_step(run))]
    # Every point is a mean over the same seeds.
    common = set.intersection(*map(set, successes)) if successes else set()
    curve = []
    for step in sorted(common):
        estimate = mean(each[step] for each in successes)
        curve.append(
            Point(step, _known(estimate.value), _known(estimate.low), _known(estimate.high))
        )
    rises = [(_start(run), _end(run)) for run in runs]
    return Arm(
        name,
        sorted(runs, key=_seed),
        curve,
        mean(b - a for a, b in rises if a is not None and b is not None),
        mean(b for _, b in rises if b is not None),
    )


def _by_step(run: RunFolder) -> dict[int, float]:
    """Return training step to the success measured after it."""
    found = (
        (evaluation["step"], evaluation.get("success", {}).get("value"))
        for evaluation in run.evaluations().values()
    )
    return {int(step): value for step, value in found if value is not None}


def _start(run: RunFolder) -> float | None:
    evaluation = run.evaluations().get("start")
    return evaluation["success"]["value"] if evaluation else None


def _end(run: RunFolder) -> float | None:
    evaluation = final_evaluation(run)
    return evaluation["success"]["value"] if evaluation else None


def _seed(run: RunFolder) -> int:
    return int(run.field("seeds.training", 0))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= (
            _flat(value, f"{above}{name}.")
            if isinstance(value, dict)
            else {f"{above}{name}": value}
        )
    return found
