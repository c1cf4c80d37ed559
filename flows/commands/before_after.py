"""`agentgym before-after`: compare the policies before and after training."""

from __future__ import annotations

from flows.command import (
    LocalRecords,
    parse_recipe,
    positive,
    recipe_parser,
    run_command,
    set_engine_variables,
)

EXAMPLES = """examples:
  agentgym before-after quickstart
  agentgym before-after quickstart --n-seeds 8
  agentgym before-after textcraft --evaluation.final_tasks '[one-command-test]'

Finished runs are not trained again. The same command continues where it was interrupted."""
ABOUT = "Train by a recipe, and compare the policy before and after training with behaviour cloning and scripted policies."


def main(arguments: list[str]) -> None:
    """Parse the command line, train and compare."""
    parser = recipe_parser("agentgym before-after", ABOUT, EXAMPLES, "[--n-seeds N]")
    parser.add_argument(
        "--n-seeds",
        type=positive,
        default=1,
        metavar="N",
        help="number of training seeds (default: only the recipe's seed)",
    )
    given, overrides = parse_recipe(parser, arguments)
    set_engine_variables()
    records = LocalRecords()
    from flows.before_after import before_after

    run_command(records, lambda: before_after(given.recipe, overrides, given.n_seeds))
