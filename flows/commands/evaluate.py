"""`agentgym evaluate`: evaluate a checkpoint, model, endpoint or scripted policy."""

from __future__ import annotations

from pathlib import Path

from configs.evaluation_grid import EvaluationGrid
from flows.command import LocalRecords, run_command, set_engine_variables
from flows.commands.collect import (
    check_output_folder,
    policy_of,
    policy_parser,
    print_checkpoint_defaults,
    usage_errors,
)
from flows.requests import evaluation_request

EXAMPLES = """examples:
  agentgym evaluate textcraft --oracle --tasks wood-test
  agentgym evaluate searchqa --model runs/quickstart-1a2b3c/checkpoints/step-000036 --horizon 3 6 --temperature 1 0.25
  agentgym evaluate searchqa --model runs/quickstart-1a2b3c/checkpoints/step-000036 --against runs/evaluated/searchqa-oracle-4f5e6d
  OPENAI_API_KEY=... agentgym evaluate babyai --openai https://api.openai.com/v1 --endpoint-model gpt-4.1 --tasks test my-tasks.json

A checkpoint is evaluated with the settings of its run's evaluations: action format, instruction, dtype, token budgets, tasks,
horizon, temperature and, in the same world, rules and success score. Options override these settings.
Every field of the recipe sections rollout and environment can be set, e.g. --environment.rules agentgym.
`agentgym tasks WORLD` prints the task lists.
The same command continues an interrupted evaluation."""


def main(arguments: list[str]) -> None:
    """Parse the command line and evaluate."""
    grid, folder, against = evaluation_arguments(arguments)
    set_engine_variables()
    records = LocalRecords()
    from flows.evaluate import evaluate

    run_command(
        records, lambda: evaluate(grid, folder, against), continues="with the missing episodes"
    )


def evaluation_arguments(
    arguments: list[str] | None = None,
) -> tuple[EvaluationGrid, Path | None, Path | None]:
    """Parse and check the command line. Exits on --help and on errors.

    Returns:
        The evaluation, the output folder and the folder of an evaluation to compare with. Folders
        that are not given are None.
    """
    says = "Evaluate any policy in any world, at several horizons and temperatures, and compare it with another evaluation."
    parser = policy_parser("agentgym evaluate", says, EXAMPLES)
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="LIST",
        help="task lists, or files of indices (default: the checkpoint's, else test)",
    )
    parser.add_argument(
        "--categories",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="files of task ids; each file is a category with its own success rate",
    )
    parser.add_argument(
        "--horizon",
        nargs="+",
        type=int,
        metavar="N",
        help="maximum numbers of turns (default: the checkpoint's, else 30)",
    )
    parser.add_argument(
        "--temperature",
        nargs="+",
        type=float,
        metavar="T",
        help="sampling temperatures, 0 is greedy (default: the checkpoint's, else 1.0)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="folder of another evaluation to compare with, paired by task",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="output folder of episodes and tables (default: a folder in runs/evaluated)",
    )
    parsed, rest = parser.parse_known_args(arguments)
    with usage_errors(parser):
        given, trained_by = policy_of(parsed, rest)
        given |= {
            "tasks": parsed.tasks,
            "horizons": parsed.horizon,
            "temperatures": parsed.temperature,
        }
        if len({path.stem for path in parsed.categories or ()}) < len(parsed.categories or ()):
            parser.error(
                "--categories: two files have the same name. The file name is the category's name, "
                "so rename one file."
            )
        given |= {"categories": {path.stem: str(path) for path in parsed.categories or ()}}
        grid = evaluation_request(given, trained_by)
    if parsed.against is not None and not (parsed.against / "evaluation.json").is_file():
        parser.error(
            f"--against: {parsed.against} has no evaluation.json. Give the folder of an evaluation."
        )
    check_output_folder(parser, parsed.out)
    print_checkpoint_defaults(trained_by, parsed, rest)
    return grid, parsed.out, parsed.against
