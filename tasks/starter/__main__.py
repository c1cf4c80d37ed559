"""Builds the starter policy: python -m tasks.starter --folder runs/starter"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.experiment import Policy, StarterPolicy
from tasks.provision.ipc import die_with_parent
from tasks.starter.oracle_cloning import clone_from_oracle
from tasks.starter.starter_policy import build_starter_policy


def main() -> None:
    """Build a starter policy from the command line and print its report as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.starter",
        description="Build a starter policy: a small model cloned from the oracle's episodes. Prints its report as one line of JSON.",
        epilog="example: python -m tasks.starter --environment textcraft --folder runs/starter --config '{\"layers\": 3}'",
    )
    parser.add_argument(
        "--environment",
        default="textcraft",
        help="world whose oracle provides the demonstrations (default: %(default)s)",
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder of all starter policies")
    parser.add_argument(
        "--action-format",
        choices=("react", "bare"),
        default="bare",
        help="format of its messages (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the weights and demonstrations (default: %(default)s)",
    )
    parser.add_argument(
        "--config",
        default="{}",
        help="the recipe's section policy.starter as JSON. Missing fields have their defaults.",
    )
    parser.add_argument("--assist", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    policy = Policy(
        starter=StarterPolicy.model_validate_json(arguments.config),
        action_format=arguments.action_format,
    )
    if arguments.assist:
        die_with_parent()
        clone_from_oracle(
            policy,
            arguments.environment,
            arguments.seed,
            arguments.folder,
            arguments.assist,
            1,
            None,
        )
        return
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with ExitStack() as stack:
        bars: dict[str, tqdm[Any]] = {}

        def show(phase: str, done: int, total: int, loss: float | None) -> None:
            if phase not in bars:
                bars[phase] = stack.enter_context(
                    tqdm(
                        desc="starter policy",
                        unit=f" {phase}",
                        unit_scale=phase == "tokens",
                        file=sys.stderr,
                        position=0,  # no cursor movements between the bars of two phases
                        # The command that builds the policy shows it inside a bar of its own.
                        bar_format="{desc}: {n_fmt}/{total_fmt}{unit}, {remaining} left{postfix}",
                    )
                )
            bar = bars[phase]
            bar.total = total
            if loss is not None:
                bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update(done - bar.n)

        result = build_starter_policy(
            policy, arguments.environment, arguments.seed, arguments.folder, show
        )
    print(json.dumps(asdict(result), default=str))


if __name__ == "__main__":
    main()
