"""Train nightly: tonight's policy challenges the champion, the best policy so far.

    agentgym nightly RECIPE [--start-from champion] [--night 2026-11-22] [--field.path value ...]

The challenger replaces the champion only if it is better. A night is named after its date (UTC),
which is also its seed. Running the same night again continues it from where it was interrupted. If
it is decided, its result is shown.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("nightly")  # ends the process before the slow imports below

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.assets import materialize
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from pydantic import WithJsonSchema

from configs.infrastructure import InfraSettings, infra_settings
from configs.model_folder import ModelError, recipe_of
from configs.recipe import RecipeError, dotted, load_recipe
from environments.handshake import check_same_version
from flows.checks import check_experiment
from flows.collect import collect
from flows.collection_session import folder_name
from flows.command import set_engine_variables
from flows.events import announce, announce_collapse, asset_of, describe_version
from flows.flow_page import flow_log, link_to_mlflow, show_viewer_link
from flows.killed_flow_runs import note_flow_run
from flows.model_check import fit_experiment
from flows.night_schedule import due_dates
from flows.page_progress import PageProgress
from flows.recipe_form import NOTHING_CHANGED, Recipe, RecipeForm, requested_run
from flows.records import earlier_records_sent, evaluations, mlflow_address, open_tracker
from flows.requests import grid_of_run
from flows.results import stored_episodes
from flows.run_names import named_by
from flows.scaling_inter import Overrides, scaling_inter
from tasks.evaluation.benchmark import EvaluationResult, check_complete, evaluate, write_evaluation
from tasks.evaluation.nights import (
    Night,
    is_better,
    last_champion,
    missed_nights,
    nights_table,
    read_nights,
    seed_of,
    write_night,
)
from tasks.evaluation.statistics import difference
from tasks.tracking.checkpoints import CheckpointEntry, aliased_checkpoint
from tasks.tracking.mlflow_import import is_transient
from tasks.tracking.outbox import RUN
from tasks.tracking.owner import claimed
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.tracker import Tracker
from tasks.training.checkpoint import Checkpoint, verify

CHAMPION, CHALLENGER = "champion", "challenger"
"""Aliases of the registered model in MLflow."""

STAGES = 3
"""Stages of a night in the progress bar on its page: training, comparison, record."""

StartFrom = Literal["recipe", "champion"]
Date = Annotated[
    str | None, WithJsonSchema({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})
]


def described(parameters: Mapping[str, Any]) -> str:
    """Return the name of a night's flow run, e.g. "night 2026-11-22, quickstart"."""
    try:
        return f"night {date_of(parameters.get('night')).isoformat()}, {parameters.get('recipe', 'quickstart')}"
    except RecipeError:  # the flow reports it
        return f"nightly run, {parameters.get('recipe', 'quickstart')}"


@flow(
    name="nightly",
    on_running=[note_flow_run],
    flow_run_name=named_by(described),
    validate_parameters=False,
)
def nightly(
    recipe: Recipe = "quickstart",
    changes: RecipeForm = NOTHING_CHANGED,
    start_from: StartFrom = "recipe",
    night: Date = None,
    overrides: Overrides = None,
) -> Night:
    """Train a challenger with tonight's seed and promote it if it beats the champion.

    Both policies are evaluated on the same held-out tasks.

    Args:
        recipe: What to train and evaluate: the name of one of the recipes in configs/.
        changes: The fields that people change most. Empty fields keep the recipe's value. The seed
            is derived from the date.
        start_from: Whether the challenger starts from the recipe's policy or from the champion.
        night: Date (UTC) of the night, e.g. 2026-11-22, to make up for a missed one or to continue
            a failed one. Empty: the date on which the run was due.
        overrides: Other recipe fields by dotted name (see configs/experiment.py), e.g.
            {"rollout.temperature": 0.8}.

    Returns:
        The night: the verdict, success of both policies and their difference.

    Raises:
        RecipeError: A value is invalid. Nothing has been started.
        RunBusyError: Another process is running a night of this recipe.
    """
    set_engine_variables()
    tonight, requested = date_of(night), requested_run(recipe, changes, overrides)
    check_night(start_from, requested.overrides)
    experiment, infrastructure = fit_experiment(requested.experiment), infra_settings()
    check_experiment(experiment, infrastructure)
    log = flow_log()
    folder = infrastructure.runs.absolute() / "nights" / experiment.name
    with (
        claimed(
            folder, "a nightly run", "nightly runs never overlap, so wait until it has finished"
        ),
        PageProgress(STAGES) as page,
    ):
        begun = begin(folder, tonight, infrastructure, experiment.name)
        if begun.decided:
            table = show(folder, experiment.name)
            print(
                f"\nNight {begun.date} is already decided: {begun.verdict}. No training ran. To "
                f"train again, give another night or another name.\n\n{table}"
            )
            return begun
        try:
            seeded = night_overrides(requested.overrides, begun, start_from)
            challenger = fit_experiment(load_recipe(recipe, seeded))
            run = RunFolder(infrastructure.runs, challenger)
            show_viewer_link(run.path, infrastructure.runs.absolute(), log)
            page.show(0, "training the challenger")
            scaling_inter(recipe, overrides=seeded)
            announce_collapse(run)
            page.show(1, "comparing the challenger with the champion")
            judged = judge(folder, begun, run, infrastructure)
        except Exception as problem:
            write_night(
                folder,
                replace(begun, verdict="failed", said=f"{type(problem).__name__}: {problem}"[:500]),
            )
            show(folder, experiment.name)
            raise
        write_night(folder, judged)
        page.show(2, "recording the verdict")
        table = show(folder, experiment.name)
        if judged.promoted:
            recorded = materialize(
                asset_of(experiment.name, "champion"),
                asset_deps=[asset_of(experiment.name, "checkpoint")],
                cache_policy=NO_CACHE,
                task_run_name="promote the challenger",
            )(record)
            recorded(folder, judged, run, infrastructure, table)
        else:
            record(folder, judged, run, infrastructure, table)
        # A missing champion can be replaced: the same night then compares with the new one.
        judged = replace(judged, decided=judged.verdict != "champion missing")
        write_night(folder, judged)
        page.show(STAGES, f"verdict: {judged.verdict}")
        log(f"Night {judged.date}: {judged.verdict}")
    print(f"\n{table}")
    return judged


def date_of(night: str | None) -> date:
    """Return the date of a night: the given one, else the date on which the flow run was due.

    Raises:
        RecipeError: `night` is not a date.
    """
    if night:
        try:
            return date.fromisoformat(night)
        except ValueError:
            raise RecipeError(f"night: {night!r} is not a date; write it like 2026-11-22") from None
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        due = context.flow_run.expected_start_time
    else:
        due = None
    return (due or datetime.now(UTC)).astimezone(UTC).date()


def check_night(start_from: str, overrides: Mapping[str, Any]) -> None:
    """
    Raises:
        RecipeError: `start_from` is invalid, or an override sets a seed that the night derives from
            its date.
    """
    if start_from not in ("recipe", "champion"):
        raise RecipeError(f"start_from: must be recipe or champion, not {start_from!r}")
    given = dotted(overrides)
    for name in ("seeds.training", "seeds.evaluation"):
        if name in given:
            raise RecipeError(
                f"{name}: cannot be {given[name]!r}, because the seed is derived from the "
                "date; leave it out"
            )


def begin(folder: Path, tonight: date, infrastructure: InfraSettings, model: str) -> Night:
    """Record the start of a night, or return the record of a night that was started before.

    The record fixes the champion that the challenger may start from, because the training run
    depends on it.
    """
    nights, damaged = read_nights(folder)
    log = flow_log()
    for line in damaged:
        log(line)
    if found := next((each for each in nights if each.date == tonight.isoformat()), None):
        return found
    earlier = [each for each in nights if each.date < tonight.isoformat()]
    due = due_dates(date.fromisoformat(earlier[-1].date), tonight) if earlier else []
    missed = missed_nights(earlier, due, tonight)
    current = champion(infrastructure, model, nights)
    begun = Night(
        tonight.isoformat(),
        seed_of(tonight),
        current,
        missed=missed,
        champion_at_start=current,
    )
    if begun.missed:
        log(f"Missed nights: {', '.join(begun.missed)}")
    write_night(folder, begun)
    return begun


def champion(infrastructure: InfraSettings, model: str, nights: list[Night]) -> str:
    """Return the folder of the current champion's checkpoint, or "" without a champion.

    MLflow's alias names the champion. If MLflow is unreachable or has no such alias, e.g. because
    it is a new one, the last promotion on record does.
    """
    with earlier_records_sent(infrastructure):  # MLflow may not have the last night's verdict yet
        pass
    try:
        found = aliased_checkpoint(mlflow_address(infrastructure)[0], model, CHAMPION)
    except Exception as away:
        if not is_transient(away):
            raise
        flow_log()(f"MLflow is not reachable ({away}). The last promoted challenger is used.")
        return last_champion(nights)
    return str(found) if found else last_champion(nights)


def night_overrides(overrides: Mapping[str, Any], begun: Night, start_from: str) -> dict[str, Any]:
    """Return the overrides with the night's seed.

    If the night starts from the champion, they also name the weights of the champion at its first
    start.
    """
    seeded = {**overrides, "seeds.training": begun.seed, "seeds.evaluation": begun.seed}
    if start_from == "champion" and begun.champion_at_start:
        seeded["policy.model"] = begun.champion_at_start
    return seeded


def judge(folder: Path, begun: Night, run: RunFolder, infrastructure: InfraSettings) -> Night:
    """Compare tonight's policy with the champion on the same held-out tasks and sampling seeds.

    The champion is the current one. It may be another one than at the start of the night.

    If training collapsed and the weights of its last evaluation are in no checkpoint, e.g. those of
    the start, the verdict is "collapsed".
    """
    challenger = list(evaluations(run).values())[-1]
    checkpoint = run.checkpoint(challenger.step)
    unjudged = Night(  # without the figures of an earlier attempt
        begun.date,
        begun.seed,
        begun.champion,
        missed=begun.missed,
        champion_at_start=begun.champion_at_start,
    )
    if (fall := run.collapse()) is not None and not checkpoint.is_dir():
        return replace(unjudged, verdict="collapsed", said=str(fall))
    current = champion(infrastructure, run.experiment.name, read_nights(folder)[0])
    if Path(current) == checkpoint:  # promoted before an interruption: compare as before
        current = begun.champion
    measured = replace(
        unjudged,
        champion=current,
        challenger=str(checkpoint),
        challenger_success=challenger.success,
    )
    if not current:
        return replace(measured, verdict="first", promoted_at=time.time())
    try:
        held = measure_champion(folder / begun.date, Path(current), run)
    except ModelError as problem:
        return replace(measured, verdict="champion missing", said=str(problem))
    check_complete([held, challenger], "the comparison of champion and challenger")
    gain = difference(held.tallies, challenger.tallies)
    compared = replace(measured, champion_success=held.success, difference=gain)
    if is_better(gain):
        return replace(compared, verdict="better", promoted_at=time.time())
    return replace(compared, verdict="not better")


def measure_champion(folder: Path, checkpoint: Path, run: RunFolder) -> EvaluationResult:
    """Evaluate the champion on tonight's held-out tasks, in the action format it was trained in.

    Args:
        folder: Folder of the night. Each champion's episodes have their own folder in it.
        checkpoint: The champion.
        run: The night's run.

    Raises:
        ModelError: The champion's weights are gone.
        MissingEpisodesError: Infrastructure failures broke episodes. Running the same night again
            plays them.
        WrongWorldError: The night's run was evaluated on another version of the world.
    """
    experiment, trained_by = run.experiment, recipe_of(str(checkpoint))
    if trained_by is None or not (checkpoint / "config.json").is_file():
        raise ModelError(
            f"{checkpoint} no longer has a checkpoint. Set MLflow's alias {CHAMPION} to another "
            "version."
        )
    budgets = {
        name: getattr(trained_by.rollout, name) for name in ("turn_tokens", "trajectory_tokens")
    }
    by_champion = {
        "policy": trained_by.policy,
        "rollout": experiment.rollout.model_copy(update=budgets),
    }
    (collection,) = (
        grid_of_run(experiment.model_copy(update=by_champion), str(checkpoint)).cells().values()
    )
    folder /= folder_name(collection)
    collect(collection, folder)
    check_same_version(folder, run.path)
    played = stored_episodes(folder)
    result = evaluate(
        played,
        label=CHAMPION,
        step=int(checkpoint.name.removeprefix("step-") or 0),
        horizon=collection.horizon,
    )
    write_evaluation(folder / "evaluation.json", result)
    return result


def show(folder: Path, model: str) -> str:
    """Put the table of the nights on the flow run's page, and return it."""
    nights, _ = read_nights(folder)
    table = nights_table(nights)
    create_markdown_artifact(
        table, key="nights", description=f"Champion and challengers of {model}"
    )
    return table


def record(
    folder: Path, night: Night, run: RunFolder, infrastructure: InfraSettings, table: str
) -> None:
    """Log the verdict to MLflow, on the night's run: aliases, metrics and table.

    A night without a challenger moves no alias.
    """
    published = verify(Path(night.challenger), run.fingerprint) if night.challenger else None
    with open_tracker(infrastructure, run.experiment.name, run.path) as tracker:
        link_to_mlflow(tracker, RUN, infrastructure.runs.absolute(), flow_log())
        if published is not None:
            point_aliases(night, published, run, tracker)
        gain = night.difference
        figures = {
            "challenger_success": night.challenger_success.value,
            "champion_success": night.champion_success.value,
            "difference": gain.value,
            "difference_low": gain.low,
            "difference_high": gain.high,
            "promoted": float(night.promoted),
        }
        tracker.log_metrics(
            RUN,
            {f"nightly/{name}": value for name, value in figures.items()},
            published.step if published is not None else max(run.metrics(), default=0),
            of="night",
        )
        tracker.log_table(RUN, table, "nights.md")


def point_aliases(night: Night, published: Checkpoint, run: RunFolder, tracker: Tracker) -> None:
    """Point MLflow's aliases to the challenger's checkpoint, and announce a promotion."""
    horizon = int(run.metrics().get(published.step, {}).get("rollout/horizon", 0))
    entry = CheckpointEntry(
        run.experiment.name, published.folder, published.digest, published.step, horizon
    )
    tracker.point_aliases(RUN, entry, [CHALLENGER, CHAMPION] if night.promoted else [CHALLENGER])
    if night.promoted:
        success = night.challenger_success.value
        announce(
            "agentgym.challenger.promoted",
            run.experiment.name,
            checkpoint=night.challenger,
            success=success,
        )
        describe_version(asset_of(run.experiment.name, "champion"), published, success)
