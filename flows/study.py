"""Run a study: train the arms of an experiment under several seeds and compare them.

    agentgym study configs/studies/NAME.yaml [--field value ...] [--look-again REASON] [--report]

The study is registered before training. Finished work is not repeated, so the same command
continues after a kill. With --report nothing is trained: the page is written to docs/evidence/,
from the existing runs and from those kept there.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("study")  # ends the process before the slow imports below

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.assets import add_asset_metadata, materialize
from prefect.cache_policies import NO_CACHE
from pydantic import WithJsonSchema

from configs.infrastructure import PREFIX, InfraSettings, infra_settings
from configs.study import load_study, study_names
from flows import progress
from flows.accelerators import accelerators_held
from flows.checks import check_study
from flows.events import asset_of
from flows.flow_page import flow_log, show_picture
from flows.killed_flow_runs import note_flow_run
from flows.parallel_commands import (
    gpu_slots,
    max_parallel_commands,
    run_chains,
    trainer_processes,
)
from flows.records import open_tracker
from flows.results import StudyResult
from flows.run_names import named_by
from flows.scripted_policies import scripted_in_study
from flows.study_page import StudyPage, write_page
from flows.study_runs import StudyRuns
from tasks.evaluation.benchmark import EvaluationFileError
from tasks.evaluation.study_episodes_file import episode_rows, write_episodes
from tasks.evaluation.study_registry import FILE, publish, register, registered
from tasks.evaluation.study_runs_file import read_runs, write_runs
from tasks.provision.process import ROOT
from tasks.tracking.tracker import Tracker
from tasks.training.trainer_client import TrainerFailedError

DOCS, SCRIPTED = Path("docs") / "evidence", "scripted"
"""Folder of the published studies below the working folder, and that of scripted policies in it."""
PUBLISHED = ROOT / DOCS
"""Folder of the studies published with this version."""
KEPT, EPISODES = "runs.jsonl.gz", "episodes.parquet"
PROCESSES = f"{PREFIX}TRAINER_PROCESSES"

Named = Annotated[str, WithJsonSchema({"type": "string", "enum": study_names()})]


@flow(
    name="study",
    on_running=[note_flow_run],
    flow_run_name=named_by(lambda given: f"study {Path(str(given.get('name'))).stem}"),
)
def study(
    name: Named = "quickstart",
    overrides: dict[str, Any] | None = None,
    look_again: str | None = None,
    only_seeds: list[int] | None = None,
) -> StudyResult:
    """Train every arm under every seed, and compare the arms.

    Failed runs are reported at the end, after all others. The page then covers the successful ones.

    Args:
        name: A study of configs/studies/ by name, or the path of a YAML file.
        overrides: New values of the study's own fields, e.g. {"seeds": 2}.
        look_again: Reason to measure held-out tasks that another study has measured.
        only_seeds: Seeds to run here, e.g. because other machines run the others. None: all.

    Raises:
        RecipeError: An arm is invalid, a run needs more GPUs than there are, or `only_seeds` has a
            seed that is not one of the study.
        StudyChangedError: The study differs from the one that was registered under its name.
        EvaluationFileError: Its runs were measured on different versions of a world.
        TasksLookedAtError: Its held-out tasks were measured before, and no reason is given.
        TrainerFailedError: At least one run failed. The same command retries only those.
    """
    infrastructure, what = infra_settings(), load_study(name, overrides)
    check_study(what, infrastructure, only_seeds)
    runs = StudyRuns(what, infrastructure)
    at_once = max_parallel_commands(infrastructure, runs.dtypes())
    chains = runs.commands(only_seeds)
    runs.found()  # Refuse runs on different versions of a world before training more.
    registration = register(
        what, runs.folder, registries(infrastructure), look_again, runs.are_begun()
    )
    with open_tracker(infrastructure, what.name, runs.folder) as tracker:
        run = tracker.start_run(
            f"study {what.name}",
            what.model_dump(mode="json"),
            {"kind": "study", "folder": str(runs.folder)},
            reopens=True,
        )
        environment = {PROCESSES: str(trainer_processes(infrastructure))}
        if (parent := tracker.mlflow_id(run)) is not None:
            environment[f"{PREFIX}MLFLOW_PARENT_RUN"] = parent
        gpus = gpu_slots(infrastructure)
        with nullcontext() if gpus else accelerators_held(infrastructure, what.name, say):
            failures = run_chains(chains, at_once, gpus, environment, say)
        found = runs.found()
        say("Playing scripted policies on the same tasks, unless their results are recorded")
        scripted = scripted_in_study(what, found, infrastructure)
        report_asset = asset_of(what.name, "report")

        @materialize(
            report_asset,
            asset_deps=[asset_of(what.name, "checkpoint")],
            cache_policy=NO_CACHE,
            task_run_name="write the report",
        )
        def written() -> StudyPage:
            page = write_page(what, found, runs.folder, scripted, registration)
            show(page, tracker, run)
            metadata = {"folder": str(runs.folder), "runs": sum(map(len, found.values()))}
            add_asset_metadata(report_asset, metadata)
            return page

        page = written()
        tracker.end_run(run, "FAILED" if failures else "FINISHED")
    print(f"\n{page.markdown}\nReport, figures and data: {runs.folder}")
    if failures:
        raise TrainerFailedError("\n".join(failures))
    return StudyResult(runs.folder, what, found, page)


def registries(infrastructure: InfraSettings) -> tuple[Path, Path]:
    """Return the registry of the studies on this machine, and that of the published studies."""
    return infrastructure.runs.absolute() / "studies" / FILE, PUBLISHED / FILE


def say(line: str) -> None:
    """Print a line to the terminal and to the flow run's page."""
    progress.say(line)
    flow_log()(line)


def show(page: StudyPage, tracker: Tracker, run: str) -> None:
    """Put the study's page on MLflow's and Prefect's pages."""
    tracker.log_table(run, page.markdown, "report.md")
    for picture in page.pictures:
        tracker.log_picture(run, picture)
        show_picture(picture, f"study-{picture.stem}", page.title)
    create_markdown_artifact(page.markdown, key="study", description=page.title)


def report(name: str, overrides: dict[str, Any]) -> Path:
    """Write the page of the existing runs to docs/evidence/NAME and return that folder.

    Nothing is trained. The folder also keeps the runs and the actions of their evaluations, so that
    runs deleted here or made on another machine are read from its files. The results of scripted
    policies are kept next to the studies, because several studies may share tasks. The study's
    registration is published there, too.

    Raises:
        EvaluationFileError: The study has no runs, or they were measured on different versions of a
            world. An existing page stays.
    """
    what, infrastructure = load_study(name, overrides), infra_settings()
    runs, file = StudyRuns(what, infrastructure), DOCS / what.name / KEPT
    kept = read_runs(file)
    found = runs.found(kept)
    if not any(found.values()):
        raise EvaluationFileError(
            f"There is no finished run of the current study {what.name} in {infrastructure.runs} "
            f"or in {file}. Run the study "
            f"(agentgym study {name}), or set AGENTGYM_RUNS to the folder of its runs."
        )
    print(
        "Playing scripted policies on the same tasks, unless their results are recorded",
        file=sys.stderr,
    )
    scripted = scripted_in_study(what, found, infrastructure, DOCS / SCRIPTED)
    registration = registered(what, (*registries(infrastructure), DOCS / FILE))
    write_page(what, found, DOCS / what.name, scripted, registration)
    if registration is not None:
        publish(registration, DOCS / FILE)
    write_runs(
        file,
        kept | {runs.key(arm, run.seed): run for arm, of_arm in found.items() for run in of_arm},
    )
    of_all = [run for of_arm in found.values() for run in of_arm]
    rows = [row for run in of_all for row in episode_rows(run.arm, run.seed, runs.episodes(run))]
    write_episodes(DOCS / what.name / EPISODES, rows, {(run.arm, run.seed) for run in of_all})
    return DOCS / what.name
