"""Attack the server of a world while a well-behaved client plays.

    python -m tests.soaks.hostile_clients [WORLD] [--rounds 1]

Every attack of tests/support/hostile.py runs against a real server on loopback. Examples are floods
of invalid items, endless headers and bodies, silent connections, unread answers, actions of
megabytes, all sessions taken for a day, and guessed session numbers.

For each attack the command prints

- the number of requests sent
- the peak memory of the server
- the slowest answer to the well-behaved client, and the client's failures
- the number of 5xx answers except 503, which means that the server is full

It fails if there was such a 5xx answer, if an episode of the well-behaved client failed, or if an
answer to it took longer than --slowest seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import requests

from environments.client import EnvironmentClient
from environments.errors import EnvironmentCallError
from tests.support.hostile import ATTACKS, Attacker, memory_mb
from tests.support.playing import server_of

EPISODES_AT_ONCE = 8
ACTION = "inventory"
TURNS = 5


@dataclass
class WellBehavedClient:
    """A well-behaved client that plays eight episodes at a time and polls the server's health.

    Attributes:
        slowest_s: Time of the slowest answer, in seconds.
        answers: Number of answered steps.
        failures: Descriptions of all failures.
    """

    url: str
    slowest_s: float = 0.0
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    def play(self, ended: threading.Event) -> None:
        """Play until `ended` is set."""
        asyncio.run(self._play(ended))

    async def _play(self, ended: threading.Event) -> None:
        async with EnvironmentClient([self.url], deadline_s=60.0) as client:
            tasks = (await client.tasks("train"))[:50]

            async def timed(call: Callable[[], object]) -> object:
                began = time.monotonic()
                result = await call()  # type: ignore[misc]
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                return result

            async def episodes(number: int) -> None:
                while not ended.is_set():
                    try:
                        session, _ = await timed(lambda: client.start(tasks[number]))  # type: ignore[misc]
                        for _ in range(TURNS):
                            await timed(lambda session=session: client.step(session, ACTION))  # type: ignore[misc]
                            self.answers += 1
                            await asyncio.sleep(0.02)  # stands in for the time of a policy
                        await client.close(session)
                    except EnvironmentCallError as failed:
                        self.failures.append(f"{type(failed).__name__}: {failed}"[:200])

            async def health() -> None:
                while not ended.is_set():
                    await timed(lambda: asyncio.to_thread(self._health))
                    await asyncio.sleep(0.1)

            await asyncio.gather(
                health(), *(episodes(number) for number in range(EPISODES_AT_ONCE))
            )

    def _health(self) -> None:
        try:
            if requests.get(f"{self.url}/health", timeout=60).status_code != 200:
                self.failures.append("health was not 200")
        except requests.RequestException as failed:
            self.failures.append(f"health: {failed!r}"[:200])


def attacked(url: str, pid: int, name: str) -> tuple[Attacker, WellBehavedClient, float]:
    """Run one attack beside the well-behaved client.

    Returns:
        The attacker, the client, and the server's peak memory in MB.
    """
    attacker, good, ended = Attacker(url), WellBehavedClient(url), threading.Event()
    playing = threading.Thread(target=good.play, args=(ended,))
    attacking = threading.Thread(target=ATTACKS[name], args=(attacker,))
    playing.start()
    time.sleep(0.5)
    attacking.start()
    largest = memory_mb(pid)
    while attacking.is_alive():
        attacking.join(0.02)
        largest = max(largest, memory_mb(pid))
    time.sleep(0.5)
    ended.set()
    playing.join()
    return attacker, good, largest


def main() -> int:
    """Run all attacks, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.hostile_clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("world", nargs="?", default="textcraft", help="(default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds of all attacks (default: %(default)s)"
    )
    parser.add_argument(
        "--slowest",
        type=float,
        default=5.0,
        help="maximum seconds of an answer to the well-behaved client",
    )
    given = parser.parse_args()
    server = server_of(given.world)
    server.start()
    bad = False
    try:
        sys.stdout.write(
            f"{'attack':20} {'sent':>6} {'largest MB':>10} {'slowest s':>9} {'answers':>7} "
            f"{'failures':>8} {'5xx':>4}\n"
        )
        for name in list(ATTACKS) * given.rounds:
            attacker, good, largest = attacked(server.url, server.pid, name)
            faults = sum(
                count
                for status, count in attacker.statuses.items()
                if status >= 500 and status != 503
            )
            bad |= bool(faults or good.failures or good.slowest_s > given.slowest)
            sys.stdout.write(
                f"{name:20} {attacker.sent:6} {largest:10.0f} {good.slowest_s:9.2f} "
                f"{good.answers:7} {len(good.failures):8} {faults:4}\n"
            )
            sys.stdout.writelines(f"  {failure}\n" for failure in sorted(set(good.failures))[:3])
            sys.stdout.flush()
    finally:
        server.end()
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
