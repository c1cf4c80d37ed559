"""`agentgym nightly`: train tonight's challenger and compare it with the champion."""

from __future__ import annotations

import argparse
from datetime import date

from flows.command import LocalRecords, parse_recipe, recipe_parser, run_command

EXAMPLES = """examples:
  agentgym nightly quickstart
  agentgym nightly textcraft --start-from champion
  agentgym nightly quickstart --night 2026-11-22 --algorithm.steps 60

The training seed is derived from the date. The same command on the same day continues the run.
If the night is decided, the command shows its result.
--night trains for another date, e.g. after a missed night."""
ABOUT = "Train tonight's challenger, and promote it to champion if it is better."


def main(arguments: list[str]) -> None:
    """Parse the command line and train the challenger."""
    parser = recipe_parser(
        "agentgym nightly", ABOUT, EXAMPLES, "[--start-from recipe|champion] [--night DATE]"
    )
    parser.add_argument(
        "--start-from",
        choices=("recipe", "champion"),
        default="recipe",
        help="initial policy of the challenger (default: %(default)s)",
    )
    parser.add_argument(
        "--night",
        type=_date,
        metavar="DATE",
        help="date of the night, e.g. 2026-11-22 (default: today, UTC)",
    )
    given, overrides = parse_recipe(parser, arguments)
    records = LocalRecords()
    from flows.nightly import nightly

    run_command(
        records,
        lambda: nightly(
            given.recipe, start_from=given.start_from, night=given.night, overrides=overrides
        ),
    )


def _date(word: str) -> str:
    try:
        return date.fromisoformat(word).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a date; write it like 2026-11-22"
        ) from None
