"""The runs of a study in one small file, to rebuild its tables and pictures without run folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.experiment import Experiment
from tasks.evaluation.benchmark import (
    EvaluationFileError,
    EvaluationResult,
    evaluation_of,
    evaluation_tree,
)
from tasks.evaluation.study_report import MECHANISM
from tasks.evaluation.study_results import RECORDED, SECONDS, StudyRun
from tasks.files import replacing

METRICS = {"rollout/turns", "rollout/episodes", RECORDED, *SECONDS, *MECHANISM}
"""Metrics of the training steps that the report uses."""


def run_key(
    arm: str, recipe: Mapping[str, Any], beyond: Mapping[str, Any] | None, world: str
) -> str:
    """Build a run's key from everything that its result depends on.

    Args:
        recipe: Its recipe, including its seeds.
        beyond: The further evaluations.
        world: Version of its world's tasks and observations.
    """
    return json.dumps(
        {"arm": arm, "recipe": recipe, "beyond": beyond, "world": world}, sort_keys=True
    )


def _present_key(facts: Mapping[str, Any]) -> str:
    recipe = facts["recipe"]
    with suppress(ValidationError):  # for a field that recipes no longer have
        recipe = Experiment.model_validate(recipe).model_dump(mode="json")
    return run_key(facts["arm"], recipe, facts["beyond"], facts["world"])


def write_runs(path: Path, runs: Mapping[str, StudyRun]) -> None:
    """Write runs atomically as compressed lines of JSON. The same runs give the same file.

    Args:
        runs: Maps the key of each run, see `run_key`, to the run.
    """
    lines = "".join(
        json.dumps([json.loads(key), _tree(run)]) + "\n" for key, run in sorted(runs.items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=True) as stream:
        stream.write(gzip.compress(lines.encode(), mtime=0))


def read_runs(path: Path) -> dict[str, StudyRun]:
    """Read the runs by their current keys, or return nothing if there is no file.

    Recipe fields added since then take their defaults in the keys, so stored runs are still found.

    Raises:
        EvaluationFileError: The file holds something else.
    """
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        return {_present_key(facts): _run(tree) for facts, tree in map(json.loads, lines)}
    except FileNotFoundError:
        return {}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise EvaluationFileError(
            f"{path} is not a valid file of study runs ({problem!r}). Restore it or delete it."
        ) from problem


def _tree(run: StudyRun) -> dict[str, Any]:
    return {
        "arm": run.arm,
        "seed": run.seed,
        "results": [evaluation_tree(result) for result in run.results],
        "steps": {
            step: {name: value for name, value in metrics.items() if name in METRICS}
            for step, metrics in run.steps.items()
        },
        "collapsed": run.collapsed,
        "first": {cell: evaluation_tree(result) for cell, result in run.first.items()},
        "last": {cell: evaluation_tree(result) for cell, result in run.last.items()},
        "weights": run.weights,
    }


def _run(tree: Mapping[str, Any]) -> StudyRun:
    return StudyRun(
        arm=tree["arm"],
        seed=tree["seed"],
        results=[evaluation_of(result) for result in tree["results"]],
        steps={int(step): metrics for step, metrics in tree["steps"].items()},
        collapsed=tree["collapsed"],
        first=_cells(tree["first"]),
        last=_cells(tree["last"]),
        weights=tree.get("weights", ""),  # earlier versions recorded none
    )


def _cells(trees: Mapping[str, Any]) -> dict[str, EvaluationResult]:
    return {cell: evaluation_of(tree) for cell, tree in trees.items()}
