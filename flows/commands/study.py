"""`agentgym study`: train the arms of a study under several seeds and compare them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from configs.infrastructure import SettingsError, infra_settings
from configs.recipe import RecipeError, parse_overrides
from configs.study import load_study, study_names
from flows.checks import check_study
from flows.command import Arguments, LocalRecords, run_command

EXAMPLES = """examples:
  agentgym study configs/studies/methods.yaml
  agentgym study methods --seeds 2 --name methods-trial
  AGENTGYM_STUDY_RUNS_AT_ONCE=4 agentgym study quickstart
  agentgym study quickstart --only-seeds 4 5
  agentgym study quickstart --report

configs/study.py describes the fields of a study. Each field can be overridden by its name.
The same command continues an interrupted study.
A study is registered before its first run. Give a changed study another --name.
With --report nothing is trained. The page of the finished runs is written to docs/evidence/."""


def main(arguments: list[str]) -> None:
    """Parse the command line, and run the study or write its page."""
    parsed, overrides = study_arguments(arguments)
    if parsed.report:
        from flows.study import report
        from tasks.evaluation.benchmark import EvaluationFileError
        from tasks.rollout.trajectory_parquet import TrajectoryFileError
        from tasks.tracking.run_folder import RunFileError

        try:
            print(report(parsed.study, overrides))
        except (EvaluationFileError, OSError, RunFileError, TrajectoryFileError) as problem:
            raise SystemExit(f"agentgym study: {problem}") from None
        return
    records = LocalRecords()
    from flows.study import study

    run_command(
        records,
        lambda: study(parsed.study, overrides, parsed.look_again, parsed.only_seeds),
        continues="with the missing runs",
    )


def study_arguments(arguments: list[str] | None = None) -> tuple[Namespace, dict[str, Any]]:
    """Parse and check the command line. Exits on --help and on errors.

    Returns:
        The options, and overrides of the study's fields.
    """
    about = "Train all arms of a study with its seeds, and compare them."
    parser = Arguments(
        "agentgym study",
        "STUDY [--field value ...] [--only-seeds N ...] [--look-again REASON] [--report]",
        about,
        EXAMPLES,
    )
    parser.add_argument(
        "study", metavar="STUDY", help=f"a YAML file, or one of: {', '.join(study_names())}"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="write the page of the finished runs to docs/evidence/, without training",
    )
    parser.add_argument(
        "--look-again",
        metavar="REASON",
        help="measure held-out tasks that another study has measured; the report prints the reason",
    )
    parser.add_argument(
        "--only-seeds",
        metavar="N",
        type=int,
        nargs="+",
        help="run these seeds of the study, e.g. because other machines run the others",
    )
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.report and parsed.only_seeds:
        parser.error("--report describes all finished runs and takes no --only-seeds")
    if parsed.report and parsed.look_again:
        parser.error("--report measures nothing and takes no --look-again")
    try:
        overrides = parse_overrides(rest)
        what, infrastructure = load_study(parsed.study, overrides), infra_settings()
        if not parsed.report:  # the page of kept runs needs no model
            check_study(what, infrastructure, parsed.only_seeds)
    except (RecipeError, SettingsError) as problem:
        raise SystemExit(f"agentgym study: {problem}") from None
    return parsed, overrides
