"""`agentgym evaluate`: evaluate a checkpoint, model, endpoint or scripted policy."""

from __future__ import annotations

from pathlib import Path

from configs.evaluation_grid import EvaluationGrid
from flows.command import LocalRecords, expect_engine, run_to_the_end
from flows.commands.collect import policy_of, policy_parser, say_checkpoint_defaults, usage_errors
from flows.requests import evaluation_request

EXAMPLES = """examples:
  agentgym evaluate textcraft --oracle --tasks wood-test
  agentgym evaluate searchqa --model runs/quickstart-1a2b3c/checkpoints/step-000036 --horizon 3 6 --temperature 1 0.25
  agentgym evaluate searchqa --model runs/quickstart-1a2b3c/checkpoints/step-000036 --against runs/evaluated/searchqa-oracle-4f5e6d
  OPENAI_API_KEY=... agentgym evaluate babyai --openai https://api.openai.com/v1 --endpoint-model gpt-4.1 --tasks test my-tasks.json

A checkpoint carries its recipe: form of the turns, instruction, number type, budgets, tasks, horizon and temperature are those of its run's
evaluations unless they are given here. `agentgym tasks WORLD` prints the task lists. Any field of the recipe's parts rollout
and environment can be set, e.g. --environment.rules agentgym. The same command goes on where a former one was cut off."""


def main(arguments: list[str]) -> None:
    """Parse the command line and evaluate."""
    grid, folder, against = evaluation_arguments(arguments)
    expect_engine()
    records = LocalRecords()
    from flows.evaluate import evaluate

    run_to_the_end(records, lambda: evaluate(grid, folder, against), goes_on="from here")


def evaluation_arguments(arguments: list[str] | None = None) -> tuple[EvaluationGrid, Path | None, Path | None]:
    """Parse and check the command line. Exits on --help and on errors.

    Returns:
        The evaluation, the output folder and the folder of an evaluation to compare with. Folders
        that are not given are None.
    """
    says = "Evaluate any policy in any world, under several horizons and temperatures, and compare it with another."
    parser = policy_parser("agentgym evaluate", says, EXAMPLES)
    parser.add_argument("--tasks", nargs="+", metavar="LIST", help="task lists, or files of indices (default: the checkpoint's, else test)")
    parser.add_argument(
        "--categories", nargs="+", type=Path, metavar="FILE", help="files of task ids, each a category by which success is broken down"
    )
    parser.add_argument("--horizon", nargs="+", type=int, metavar="N", help="turn limits (default: the checkpoint's, else 30)")
    parser.add_argument("--temperature", nargs="+", type=float, metavar="T", help="0 is greedy (default: the checkpoint's, else 1.0)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another evaluation's folder: compare with it, paired by task")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where episodes and tables go (default: below runs/evaluated)")
    parsed, rest = parser.parse_known_args(arguments)
    with usage_errors(parser):
        given, trained_by = policy_of(parsed, rest)
        given |= {"tasks": parsed.tasks, "horizons": parsed.horizon, "temperatures": parsed.temperature}
        if len({path.stem for path in parsed.categories or ()}) < len(parsed.categories or ()):
            parser.error("--categories: two files have the same name, which names the category; rename one")
        given |= {"categories": {path.stem: str(path) for path in parsed.categories or ()}}
        grid = evaluation_request(given, trained_by)
    if parsed.against is not None and not (parsed.against / "evaluation.json").is_file():
        parser.error(f"--against: {parsed.against} holds no evaluation (there is no evaluation.json in it)")
    say_checkpoint_defaults(trained_by)
    return grid, parsed.out, parsed.against
