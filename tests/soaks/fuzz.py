"""Fuzz the server of a world: python -m tests.soaks.fuzz textcraft --requests 100000

The exit status is 1 if a request got a 5xx status or no answer.
"""

from __future__ import annotations

import argparse
import sys

import requests
from tqdm import tqdm

from tests.support.fuzzing import Fuzzer
from tests.support.playing import server_of

PART = 1000


def main() -> int:
    """Send the requests, and return 0 if none of them got a server fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.soaks.fuzz", description=__doc__)
    parser.add_argument("world", help="e.g. textcraft")
    parser.add_argument("--requests", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the requests (default: %(default)s)"
    )
    given = parser.parse_args()
    # Sessions that a fuzzed request opens are never closed. They must not fill the server.
    server = server_of(given.world, "--lease", "5")
    server.start()
    try:
        listed = requests.get(f"{server.url}/v1/tasks?split=train", timeout=600).json()
        fuzzer = Fuzzer(server.url, given.world, listed["tasks"][:200], given.seed)
    except BaseException:
        server.end()
        raise
    try:
        for done in tqdm(range(0, given.requests, PART), f"{given.world} x{PART}"):
            fuzzer.run(min(PART, given.requests - done))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted, results so far:\n")
    finally:
        server.end()
    sent, statuses = sum(fuzzer.statuses.values()), dict(sorted(fuzzer.statuses.items()))
    sys.stdout.write(
        "\n".join(
            [
                *fuzzer.faults[:20],
                f"{given.world}: {sent} requests, {len(fuzzer.faults)} faults, statuses {statuses}",
                "",
            ]
        )
    )
    return int(bool(fuzzer.faults))


if __name__ == "__main__":
    sys.exit(main())
