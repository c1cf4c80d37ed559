"""Evaluate any checkpoint, model, endpoint or scripted policy in any world.

    agentgym evaluate ENVIRONMENT (--model NAME | --vllm URL,... | --openai URL | --oracle | --random) [options]

An evaluation covers several horizons and temperatures. The same command continues an interrupted
evaluation. Episodes on disk are not played again.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("evaluate")  # ends the process before the slow imports below

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from configs.environment import World
from configs.evaluation_grid import EvaluationGrid
from configs.infrastructure import InfraSettings, infra_settings
from configs.model_folder import recipe_of
from environments.handshake import check_same_version
from environments.selection import task_indices_of
from flows.collection_session import CollectionSession, folder_name, identity
from flows.flow_page import show_picture
from flows.killed_flow_runs import note_flow_run
from flows.model_check import fit_source
from flows.records import open_tracker
from flows.requests import completed
from flows.results import Evaluation, cell_folder, cells_in, read_results, stored_episodes
from flows.run_names import named_by
from flows.scripted_policies import scripted_results
from tasks.evaluation.agentgym_figures import HEADER, figure_rows
from tasks.evaluation.baselines import baseline_line
from tasks.evaluation.benchmark import (
    EvaluationFileError,
    EvaluationResult,
    check_complete,
    incomplete_note,
    write_evaluation,
)
from tasks.evaluation.benchmark import evaluate as found_in
from tasks.evaluation.grid_report import Results, draw_grid, grid_tables
from tasks.evaluation.tables import Row, aligned, markdown
from tasks.files import replace_file
from tasks.rollout.resumable_writer import check_settings
from tasks.tracking.outbox import is_unsent


def described(parameters: Mapping[str, Any]) -> str:
    """Return the name of an evaluation's flow run, e.g. "textcraft wood-test by step-000040"."""
    grid: EvaluationGrid = parameters["grid"]
    return f"{grid.environment.name} {', '.join(grid.list_names())} by {grid.source.label}"


@flow(name="evaluate", on_running=[note_flow_run], flow_run_name=named_by(described))
def evaluate(
    grid: EvaluationGrid, folder: Path | None = None, against: Path | None = None
) -> Evaluation:
    """Evaluate a policy, and compare it with another one if `against` is given.

    Args:
        grid: The policy, the world, and the tasks, horizons and temperatures of the evaluation.
        folder: Where episodes and tables go. By default a folder below runs/evaluated that is named
            after the evaluation. It may hold other cells of the same policy.
        against: The folder of another policy's evaluation. Success is compared with it, paired by
            task.

    Raises:
        DifferentCollectionError: The folder holds the evaluation of another policy, or of this one
            with other settings. Nothing has been played.
        EvaluationFileError: `against` holds no evaluation, or shares no cell with this one.
        WrongWorldError: `against` was played on another version of the world.
        IncompleteEvaluationError: Infrastructure failures broke episodes of this evaluation or of
            `against`. The bounds of this evaluation are still recorded, and the same command plays
            the missing episodes.
    """
    infrastructure, grid = infra_settings(), completed(grid)
    grid = grid.model_copy(update={"rollout": fit_source(grid.source, grid.rollout)})
    folder = folder or infrastructure.runs / "evaluated" / folder_name(grid)
    other = comparable(grid, against) if against else None
    folder.mkdir(parents=True, exist_ok=True)
    check_settings(folder / "settings.json", shared_settings(grid))
    results: dict[str, EvaluationResult] = {}
    lines: list[str] = []
    agentgym: list[Row] = []
    with CollectionSession(next(iter(grid.cells().values())), infrastructure) as session:
        for name, cell in grid.cells().items():
            episodes = folder / cell_folder(name)
            tally = session.collect(cell, episodes, name)
            if against and other and name in other:
                check_same_version(episodes, against / cell_folder(name))
            lines.append(f"{name}: {tally.summary()}")
            played = stored_episodes(episodes)
            version = played[0].policy_version if played else 0
            tags = categories_of(grid) or session.tags(cell)
            results[name] = found_in(
                played, label=name, step=version, horizon=cell.horizon, tags=tags
            )
            if grid.environment.rules == "agentgym" and results[name].complete:
                agentgym += figure_rows(name, played, tags)
            write_evaluation(episodes / "evaluation.json", results[name])
    if note := incomplete_note(results.values()):
        lines.insert(0, note)
    print("\n".join(lines))
    record(grid, folder, results, other, infrastructure, agentgym)
    check_complete(results.values(), f"the evaluation in {folder}")
    return Evaluation(folder.absolute(), grid, results, other or {})


def shared_settings(grid: EvaluationGrid) -> dict[str, Any]:
    """Return the settings that all cells in the folder of an evaluation share."""
    of_cells = ("tasks", "categories", "horizons", "temperatures")
    return {name: value for name, value in identity(grid).items() if name not in of_cells}


def categories_of(grid: EvaluationGrid) -> dict[int, str]:
    """Return the category of each task index, as the evaluation defines it."""
    world = grid.environment
    return {
        index: name
        for name, tasks in grid.categories.items()
        if not isinstance(tasks, str)
        for index in task_indices_of(world.name, tasks, world.dialect)
    }


def comparable(grid: EvaluationGrid, against: Path) -> dict[str, EvaluationResult]:
    """Return the results of another policy in the same world, on the same tasks.

    Raises:
        EvaluationFileError: The folder holds no comparable results.
        IncompleteEvaluationError: Some of its episodes are missing.
    """
    other, theirs = read_results(against), _world_of(against)
    ours = grid.environment.model_dump(mode="json")
    if different := [
        name for name in ("name", "rules", "success_score") if theirs.get(name) != ours[name]
    ]:
        name = different[0]
        raise EvaluationFileError(
            f"{against} cannot be compared: its environment.{name} is {theirs.get(name)}, but "
            f"{ours[name]} in this evaluation"
        )
    if not set(other) & set(grid.cells()):
        raise EvaluationFileError(
            f"{against} cannot be compared: it has {'; '.join(other)}, but this evaluation has "
            f"{'; '.join(grid.cells())}"
        )
    shared = [result for name, result in other.items() if name in grid.cells()]
    check_complete(
        shared,
        f"the comparison with {against}",
        f"Run the command of {against} again to play the missing episodes.",
    )
    return other


def _world_of(folder: Path) -> dict[str, Any]:
    try:
        world: dict[str, Any] = json.loads(
            (folder / "evaluation.json").read_text(encoding="utf-8")
        )["grid"]["environment"]
        world.get("name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise EvaluationFileError(
            f"{folder / 'evaluation.json'} is damaged ({problem!r}). Evaluate that policy again."
        ) from None
    return world


def record(
    grid: EvaluationGrid,
    folder: Path,
    results: dict[str, EvaluationResult],
    other: Results | None,
    infrastructure: InfraSettings,
    agentgym: Sequence[Row] = (),
) -> None:
    """Write the table, the picture and the figures to the folder, MLflow and Prefect.

    Args:
        agentgym: Rows with AgentGym-RL's figures (see `tasks.evaluation.agentgym_figures`).
    """
    text, page = grid_tables(results, other)
    if agentgym:
        text = f"{text}\n\n{aligned(HEADER, agentgym)}"
        page = f"{page}\n{markdown(HEADER, agentgym)}\n"
    if scripted := without_learning(grid, results, infrastructure):
        text, page = f"{text}\n\n{scripted}", f"{page}\n{scripted}\n"
    picture, title = folder / "evaluation.png", f"{grid.source.label} in {grid.environment.name}"
    draw_grid(picture, grid, results)
    (folder / "evaluation.md").write_text(page, encoding="utf-8")
    index = {
        "grid": grid.model_dump(mode="json"),
        "cells": cells_in(folder) | {name: cell_folder(name) for name in results},
    }
    replace_file(folder / "evaluation.json", json.dumps(index, indent=1))
    with open_tracker(infrastructure, "evaluations", folder) as tracker:
        note = incomplete_note(results.values())
        tags = {
            "kind": "evaluation",
            "folder": str(folder.absolute()),
            "mlflow.note.content": note or "Complete.",
        }
        run = tracker.start_run(title, shared_settings(grid), tags, reopens=True)
        for name, cell in grid.cells().items():
            figures = {
                f"{name.partition(', horizon')[0]} at temperature {cell.temperature:g}/{key.partition('/')[2]}": value
                for key, value in results[name].metrics().items()
            }
            tracker.log_metrics(run, figures, cell.horizon, of=name)
        tracker.log_table(run, page, "evaluation.md")
        tracker.log_picture(run, picture)
        tracker.end_run(run, "FAILED" if note else "FINISHED")
    create_markdown_artifact(page, key="evaluation", description=title)
    show_picture(picture, "success-by-horizon", f"Success by horizon: {title}")
    print(f"\n{text}\n\nResults: {folder}")
    if is_unsent(folder / "records") and not folder.absolute().is_relative_to(
        infrastructure.runs.absolute()
    ):
        print("MLflow lacks these results. The same command sends them when MLflow answers.")


def without_learning(grid: EvaluationGrid, results: Results, infrastructure: InfraSettings) -> str:
    """Return one sentence per list and horizon on the results of scripted policies."""
    line_of_list: dict[str, str] = {}
    for name, cell in grid.cells().items():
        played = scripted_results(
            learned_in(grid), results[name].tasks, cell.horizon, infrastructure
        )
        line_of_list[name.partition(", temperature")[0]] = baseline_line(played)
    return "\n\n".join(f"{name}. {line}" for name, line in line_of_list.items() if line)


def learned_in(grid: EvaluationGrid) -> World:
    """Return the world of the evaluation, with training tasks if they are known.

    For a checkpoint trained in this world they come from its recipe. The nearest-neighbour replay
    baseline searches them.
    """
    recipe = recipe_of(grid.source.model) if grid.source.model else None
    if recipe is not None and recipe.environment.served() == grid.environment:
        return recipe.environment
    return grid.environment
