"""Measure the memory of a world's server over many episodes.

    python -m tests.soaks.memory textcraft --episodes 20000

The command fails if the memory after any later tenth of the episodes is more than 5 % above the
memory after the first tenth.
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import cycle
from typing import Any

import requests

from tests.support.playing import anonymous_mb, policy_of, server_of

SESSIONS = 20
STEPS = 6
ALLOWED = 0.05


def memory_over_episodes(world: str, episodes: int, readings: int) -> list[float]:
    """Return the memory of a new server after each of `readings` equal parts, in MB.

    No session is open during a reading.
    """
    server = server_of(world)
    server.start()
    rng, policy = random.Random(world), policy_of(world)
    try:
        with requests.Session() as http:

            def ask(operation: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
                answered = http.post(
                    f"{server.url}/v1/{operation}", json={"items": items}, timeout=600
                ).json()["items"]
                if any(reply["status"] != 200 for reply in answered):
                    raise RuntimeError(f"{operation}: {answered}")
                return list(answered)

            tasks = cycle(
                http.get(f"{server.url}/v1/tasks?split=train", timeout=600).json()["tasks"][:1000]
            )
            found: list[float] = []
            for part in range(readings):
                for _ in range(episodes // readings // SESSIONS):
                    begun = ask("create", [{"index": next(tasks)} for _ in range(SESSIONS)])
                    active = {
                        reply["session"]: (reply["observation"], reply["observation"])
                        for reply in begun
                    }
                    for turn in range(STEPS):
                        if not active:
                            break
                        items = [
                            {"session": session, "turn": turn, "action": policy(rng, first, last)}
                            for session, (first, last) in active.items()
                        ]
                        for item, reply in zip(items, ask("step", items), strict=True):
                            active[item["session"]] = (
                                active[item["session"]][0],
                                reply["observation"],
                            )
                            if reply["done"]:
                                del active[item["session"]]
                    ask("close", [{"session": reply["session"]} for reply in begun])
                found.append(anonymous_mb(server))
                sys.stderr.write(
                    f"{(part + 1) * episodes // readings} episodes: {found[-1]:.1f} MB\n"
                )
        return found
    finally:
        server.end()


def main() -> int:
    """Measure the memory, and return 0 if it does not grow."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("world", help="e.g. textcraft")
    parser.add_argument("--episodes", type=int, default=20_000, help="(default: %(default)s)")
    given = parser.parse_args()
    memory = memory_over_episodes(given.world, given.episodes, 10)
    growth = max(memory[1:]) / memory[0] - 1
    sys.stdout.write(
        f"{given.world}: growth after the first tenth of {given.episodes} episodes: {growth:+.1%}\n"
    )
    return int(growth > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
