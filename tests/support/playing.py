"""Environment servers for tests of any world, and cheap random policies that play them."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tasks.provision.local import LocalServer
from tasks.provision.process import importing
from tests.support.processes import command_line

ROOT = Path(__file__).parents[2]
WORLDS = ("babyai", "searchqa", "textcraft")
"""Worlds that need no external program. The functions accept any world."""
START_DEADLINE_S = 300.0

Policy = Callable[[random.Random, str, str], str]
"""A function from a random generator, the first and the last observation to an action."""


Start = Callable[..., LocalServer]
"""Type of `starting`'s function: start(*options, **environment)."""


def server_of(
    world: str, *options: str, state_dir: Path | None = None, **environment: str
) -> LocalServer:
    """Return a server of the world that is not yet started.

    Args:
        world: Name of the world.
        options: Further command-line options of the server.
        state_dir: Folder of the server's state.
        environment: Environment variables of the server.
    """
    command = [sys.executable, "-m", "environments", "serve", world, "--port", "{port}", *options]
    return LocalServer(
        world,
        command,
        state_dir=state_dir,
        environment=importing(environment),
        start_deadline_s=START_DEADLINE_S,
    )


@contextmanager
def starting(world: str, state_dir: Path) -> Iterator[Start]:
    """Yield start(*options, **environment), which starts a server. All end with the block."""
    with ExitStack() as ends:

        def start(*options: str, **environment: str) -> LocalServer:
            server = server_of(world, *options, state_dir=state_dir, **environment)
            ends.callback(server.end)
            server.start()
            return server

        yield start


def serving_process(server: LocalServer) -> psutil.Process:
    """Return the process below the subreaper that serves."""
    subreaper = psutil.Process(server.pid)
    return next(
        (
            process
            for process in subreaper.children(recursive=True)
            if "serve" in command_line(process)
        ),
        subreaper,
    )


def anonymous_mb(server: LocalServer) -> float:
    """Return the anonymous memory of the server and its descendants, in MiB.

    File-backed memory is left out, because the kernel can reclaim it.
    """
    root, total = serving_process(server), 0
    for process in (root, *root.children(recursive=True)):
        found = re.search(
            r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE
        )
        total += int(found[1]) if found else 0
    return total / 1024


def policy_of(world: str) -> Policy:
    """Return a policy with sensible random actions, or random words for an unknown world."""
    return {"babyai": _offered, "searchqa": _searching, "textcraft": _crafting}.get(world, _noise)


def _offered(rng: random.Random, _: str, last: str) -> str:
    return rng.choice(re.findall(r'"([^"]+)"', last) or ["turn left"])


def _searching(rng: random.Random, first: str, _: str) -> str:
    words = first.split()
    some = " ".join(rng.sample(words, min(4, len(words))))
    return f"<answer>{some}</answer>" if rng.random() < 0.2 else f"<search>{some}</search>"


def _crafting(rng: random.Random, first: str, _: str) -> str:
    count, output, needed = rng.choice(
        re.findall(r"^craft (\d+) (.*?) using (.*)$", first, re.MULTILINE)
    )
    return (
        f"get {rng.choice(needed.split(', '))}"
        if rng.random() < 0.6
        else f"craft {count} {output} using {needed}"
    )


def _noise(rng: random.Random, first: str, last: str) -> str:
    words = f"{first} {last}".split() or ["look"]
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, 4)))
