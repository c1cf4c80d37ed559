"""`agentgym check algorithm` and `agentgym check schedule`: what a run requires of them."""

from __future__ import annotations

import argparse

from configs.recipe import RecipeError, parse_overrides

EXAMPLES = """examples:
  agentgym check algorithm grpo
  agentgym check algorithm best-of-group --margin 0.5
  agentgym check schedule stepwise --horizons "[6, 10, 16]" --every 10

Further fields follow as --FIELD VALUE."""


def main(words: list[str]) -> int:
    """Print one line per check. Returns 1 if a requirement does not hold, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="agentgym check",
        description="Check that an algorithm or a schedule keeps its contract.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=["algorithm", "schedule"])
    parser.add_argument(
        "name", help="a built-in name, the entry point of an installed package, or module:Class"
    )
    given, rest = parser.parse_known_args(words)
    from tasks.training.check_extensions import check_algorithm, check_schedule

    try:
        fields = parse_overrides(rest)
        if given.part == "algorithm":
            findings = check_algorithm({"name": given.name, **fields})
        else:
            findings = check_schedule({"kind": given.name, **fields})
    except RecipeError as error:
        parser.error(str(error))
    failed = False
    for name, problem in findings:
        print(f"fail  {name}: {problem}" if problem else f"pass  {name}", flush=True)
        failed |= bool(problem)
    print("failed" if failed else "passed")
    return int(failed)
