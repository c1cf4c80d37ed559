"""The command `agentgym` for training, evaluation, the viewer and the worlds.

    agentgym COMMAND [arguments]

Each command has its own parser. `agentgym COMMAND --help` prints its options and examples.
Slow modules are imported only after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple, NoReturn

from flows.child_modules import share_modules
from flows.exit import exit_with

PROG = "agentgym"
EXAMPLES = """examples:
  agentgym train quickstart
  agentgym evaluate textcraft --oracle --tasks wood-test
  agentgym view
  agentgym train --help"""

Main = Callable[[list[str]], int | None]
"""Runs a command with the words after its name, and returns the exit status (None: 0)."""


class Command(NamedTuple):
    """A command: its line in `agentgym --help`, and its main function."""

    summary: str
    main: Main


def _flow(name: str) -> Main:
    """Return the main function of a module in flows/commands/, imported on the first call."""
    return lambda words: import_module(f"flows.commands.{name}").main(words)


def _environments(command: str) -> Main:
    """Return the main function of a command of `python -m environments`."""

    def main(words: list[str]) -> int:
        from environments.__main__ import main as environments_main

        return environments_main([command, *words], prog=PROG)

    return main


def _check(words: list[str]) -> int | None:
    """Check a world, an algorithm or a schedule. Without a name, --help describes all of them."""
    world, extension = _environments("check"), _flow("check")
    if _is_help(words):
        return _help_of(world, extension)
    if words[:1] in (["algorithm"], ["schedule"]):
        return extension(words)
    return world(words[1:] if words[:1] == ["world"] else words)


def _serve(words: list[str]) -> int | None:
    """Serve a world, or the policy that a first word without a world's name gives.

    A word that resembles a world's name, and is no file, is a misspelt world.
    """
    from environments.environment import UnknownWorldError
    from environments.registry import check_name

    world, policy = _environments("serve"), _flow("serve")
    if _is_help(words):
        return _help_of(world, policy)
    try:
        if words and not words[0].startswith("-"):
            check_name(words[0])
    except UnknownWorldError as unknown:
        if unknown.nearest is None or os.path.exists(words[0]):
            return policy(words)
    return world(words)


def _is_help(words: list[str]) -> bool:
    return words in (["-h"], ["--help"])


def _help_of(*mains: Main) -> int:
    """Print the help of each form of a command."""
    for number, main in enumerate(mains):
        if number:
            print()
        with suppress(SystemExit):
            main(["--help"])
    return 0


def _view(words: list[str]) -> None:
    from dashboards.__main__ import main as dashboards_main

    dashboards_main(words, prog=f"{PROG} view")


COMMANDS = {
    "train": Command("train an agent by a recipe and evaluate it", _flow("train")),
    "evaluate": Command(
        "evaluate a checkpoint, model, endpoint or scripted policy", _flow("evaluate")
    ),
    "study": Command(
        "train the arms of a study under several seeds and compare them", _flow("study")
    ),
    "collect": Command("collect trajectories of any policy as parquet", _flow("collect")),
    "nightly": Command(
        "train tonight's challenger and compare it with the champion", _flow("nightly")
    ),
    "before-after": Command(
        "compare the policies before and after training", _flow("before_after")
    ),
    "plan": Command("estimate turns, tokens, memory and time of a recipe", _flow("plan")),
    "view": Command("serve the viewer of runs and trajectories", _view),
    "worlds": Command("print the names of the worlds", _environments("worlds")),
    "tasks": Command("print the task lists of a world", _environments("tasks")),
    "serve": Command("serve a world over HTTP, or a policy to chat clients", _serve),
    "play": Command("play an episode in the terminal", _environments("play")),
    "openenv": Command("write an OpenEnv package of a world", _environments("openenv")),
    "check": Command("check that a world, an algorithm or a schedule keeps its contract", _check),
}


COLLECT_AFTER = 50_000
"""New objects before a garbage collection. With Python's 700, collections take a fifth of the imports' time."""


def main(words: Sequence[str] | None = None) -> int | None:
    """Run a command and return its exit status.

    Args:
        words: The command's name and its arguments. By default those of this process.
    """
    given = list(sys.argv[1:] if words is None else words)
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} COMMAND [arguments]",
        description="Train language-model agents by multi-turn reinforcement learning.",
        epilog=f"commands:\n{_table()}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"{PROG} {version('agentgym-pipeline')}"
    )
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below"
    )
    name = parser.parse_args(given[:1]).command
    gc.set_threshold(COLLECT_AFTER)
    _search_current_folder()
    return COMMANDS[name].main(given[1:])


def run(*command: str) -> NoReturn:
    """Run a command with this process's arguments, and exit.

    Args:
        command: The command's name in the module forms `python -m flows.X`. The script `agentgym`
            takes it from the arguments.
    """
    exit_with(lambda: main([*command, *sys.argv[1:]]))


def _search_current_folder() -> None:
    """Let `module:Class` name a world in the current folder, as `python -m` does.

    A folder of the user with the name of one of our packages, e.g. configs, must not hide the
    package, neither here nor in child processes.
    """
    for package in ("configs", "dashboards", "environments", "tasks"):
        import_module(package)
    sys.path.append(os.getcwd())
    share_modules(os.getcwd())


def _table() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        f"  {name.ljust(width)}  {command.summary}" for name, command in COMMANDS.items()
    )


if __name__ == "__main__":
    run()
