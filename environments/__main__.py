"""List worlds and tasks, serve a world, play an episode, or check or package your own world."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from configs.rules import Rules
from environments.address import ListenError, port

EXAMPLES = {
    "worlds": ["{prog} worlds"],
    "tasks": ["{prog} tasks textcraft"],
    "serve": [
        "{prog} serve textcraft --port 8000",
        """curl -d '{{"items": [{{"index": 0}}]}}' http://127.0.0.1:8000/v1/create""",
    ],
    "play": ["{prog} play textcraft --task 3"],
    "check": ["{prog} check textcraft", "{prog} check mine.world:Mine"],
    "openenv": ["{prog} openenv textcraft textcraft_env"],
}
"""Examples by command, for --help. `prog` is what users type before the command."""


def main(arguments: list[str] | None = None, prog: str = "python -m environments") -> int:
    """Run the command line and return the exit status.

    Args:
        arguments: The command and its arguments. By default those of this process.
        prog: What users type before the command, for help and errors.
    """
    verbatim = argparse.RawDescriptionHelpFormatter

    def examples(*names: str) -> str:
        lines = [line.format(prog=prog) for name in names for line in EXAMPLES[name]]
        return "\n  ".join(["examples:", *lines])

    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, epilog=examples(*EXAMPLES), formatter_class=verbatim
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        about = f"{summary[0].upper()}{summary[1:]}."
        return commands.add_parser(
            name,
            help=summary,
            description=about,
            epilog=examples(name),
            formatter_class=verbatim,
        )

    add("worlds", "print the names of the worlds")
    served = add("serve", "serve one world over HTTP")
    served.add_argument("name", help="the world, e.g. textcraft or module:Class")
    served.add_argument(
        "--rules",
        choices=get_args(Rules),
        default="ours",
        help="rule set; agentgym is that of AgentGym's servers, see docs/agentgym.md",
    )
    served.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    served.add_argument(
        "--port", type=port, default=8000, help="port to listen on (default: %(default)s)"
    )
    served.add_argument(
        "--max-sessions",
        type=_positive,
        default=10_000,
        help="sessions open at once (default: %(default)s)",
    )
    served.add_argument(
        "--lease",
        type=_seconds,
        default=600.0,
        help="seconds until an idle session ends, unless its creator set another lease (default: %(default)s)",
    )
    served.add_argument(
        "--no-token",
        action="store_true",
        help="serve any client. Without this flag, an address that other machines can reach requires AGENTGYM_ENVIRONMENT_TOKEN, set here "
        "and for the clients",
    )
    tasks = add("tasks", "print the name, size and description of a world's task lists")
    tasks.add_argument("name", help="the world, e.g. textcraft")
    play = add("play", "play an episode in the terminal")
    play.add_argument("name", help="the world, e.g. textcraft")
    play.add_argument(
        "--rules", choices=get_args(Rules), default="ours", help="rule set, see serve"
    )
    play.add_argument("--task", type=int, help="the task index (default: the first training task)")
    check = add(
        "check", "check that a world keeps the contract: determinism, oracle, server and so on"
    )
    check.add_argument("name", help="the world, e.g. textcraft, or module:Class")
    check.add_argument(
        "--rules", choices=get_args(Rules), default="ours", help="rule set, see serve"
    )
    check.add_argument(
        "--tasks",
        type=_positive,
        default=3,
        help="tasks of each split to play (default: %(default)s)",
    )
    check.add_argument(
        "--seed", type=int, default=0, help="seed of the random actions (default: %(default)s)"
    )
    openenv = add("openenv", "write an OpenEnv package of a world")
    openenv.add_argument("name", help="the world, e.g. textcraft, or module:Class")
    openenv.add_argument("folder", type=Path, help="where to write; it must not exist yet")
    parsed = parser.parse_args(arguments)

    from environments.environment import UnknownWorldError
    from environments.registry import check_name, world_names

    if parsed.command == "worlds":
        sys.stdout.write("".join(f"{name}\n" for name in world_names()))
        return 0
    try:
        check_name(parsed.name)
    except UnknownWorldError as unknown:
        commands.choices[parsed.command].error(str(unknown))
    if parsed.command == "check":
        from environments.conformance import check_world

        failed = False
        for result in check_world(parsed.name, parsed.rules, tasks=parsed.tasks, seed=parsed.seed):
            print(result, flush=True)
            failed |= result.result == "fail"
        print("failed" if failed else "passed")
        return int(failed)
    if parsed.command == "openenv":
        from environments.openenv.package import write_package
        from environments.registry import image_of, load_world

        try:
            return _reported(
                parsed.name,
                lambda: write_package(
                    parsed.name, load_world(parsed.name), image_of(parsed.name), parsed.folder
                ),
            )
        except FileExistsError:
            openenv.error(f"folder: {parsed.folder} exists; name a new one")
        except OSError as fault:
            openenv.error(f"folder: {parsed.folder} cannot be written: {fault.strerror}")
    if parsed.command == "tasks":
        from environments.task_tables import print_task_lists

        return _reported(parsed.name, lambda: print_task_lists(parsed.name))
    if parsed.command == "play":
        from environments.play import play_episode

        return _reported(parsed.name, lambda: play_episode(parsed.name, parsed.task, parsed.rules))

    from environments.token import VARIABLE, is_loopback, token_here

    token = None if parsed.no_token else token_here()
    try:
        if token is None and not parsed.no_token and not is_loopback(parsed.host):
            served.error(
                f"--host {parsed.host} can be reached by other machines: set {VARIABLE} to a "
                "secret, here and for the clients, or add --no-token to serve any client"
            )
    except OSError as unknown:
        served.error(f"--host {parsed.host} is not an address: {unknown.strerror}")

    from environments.registry import load_world
    from environments.server.app import Options, serve
    from environments.server.logs import configure

    configure()
    options = Options(parsed.host, parsed.port, parsed.max_sessions, parsed.lease, token)
    try:
        return _reported(parsed.name, lambda: serve(load_world(parsed.name, parsed.rules), options))
    except ListenError as taken:
        sys.stderr.write(f"{taken}\n")
        return 1


def _reported(name: str, command: Callable[[], int | None]) -> int:
    """Return the command's exit status. Report an error of the world as one message."""
    from environments.environment import WorldError

    try:
        return command() or 0
    except ImportError as fault:
        missing = f"{name} cannot be imported: {fault}; to install the worlds' packages, run: pip install 'agentgym-pipeline[worlds]'"
        sys.stderr.write(f"{missing}\n")
    except WorldError as fault:
        sys.stderr.write(f"{fault}\n")
    return 1


def _positive(word: str) -> int:
    if not (word.isdigit() and 1 <= int(word) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{word!r} is not an integer from 1 to 1000000")
    return int(word)


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0.1 to 86400")
    return value


if __name__ == "__main__":
    sys.exit(main())
