"""Kill engines and environment servers at random while episodes are collected.

    python -m tests.soaks.storm --episodes 2000 --every 3

The command prints the failed and the wrong episodes, the repeated attempts, the open sessions, and
the duration compared with a collection without kills.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from configs.experiment import Rollout
from environments.client import EnvironmentClient
from environments.protocol import Health
from tasks.agents.agent import Budgets
from tasks.agents.sampling_seeds import stable_seed
from tasks.agents.token_agent import TokenAgent
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.provision.errors import ProvisionError
from tasks.provision.local import answers
from tasks.provision.replica_set import ReplicaSet, local_replicas
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Outcome, Trajectory
from tests.support.completion_server import next_number
from tests.support.counting_servers import counting_command

GROUP = 4
HORIZON = 60
COMPLETION_SERVER = "tests.support.completion_server"
BUDGETS = Budgets(1.0, 8, 4096)


class CountingChatFormat:
    """The chat format of the counting policy: token n is "add n", and token 7 an observation."""

    stop_tokens = (1, 2, 3)
    rewrites = compacts = False

    def prompt(self, observation: str) -> list[int]:
        return [int(observation.removeprefix("Goal: ").removesuffix("."))]

    def reply(self, observation: str, last_tokens: Sequence[int]) -> list[int]:
        return [7]

    def text(self, tokens: Sequence[int]) -> str:
        return f"add {tokens[0]}"

    def action_in(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Report:
    """The result of a collection.

    Attributes:
        trajectories: All trajectories, in the order of the requests.
        wrong: Trajectories that did not fail but differ from the undisturbed episode.
        seconds: Wall time, in seconds.
        kills: Number of killed servers.
        sessions: Number of sessions that are open on the environment servers afterwards.
    """

    trajectories: list[Trajectory]
    wrong: list[Trajectory]
    seconds: float
    kills: int
    sessions: int

    @property
    def failed(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.outcome is Outcome.FAILED]


def expected(request: RolloutRequest) -> list[int]:
    """Return the numbers that the undisturbed episode adds."""
    prompt: list[int] = [request.task]
    numbers: list[int] = []
    while sum(numbers) < request.task:
        numbers.append(next_number(prompt, stable_seed(request.seed, len(numbers))))
        prompt += [numbers[-1], 7]
    return numbers


def is_right(request: RolloutRequest, trajectory: Trajectory) -> bool:
    """Return whether tokens, rewards and observations equal those of the undisturbed episode."""
    numbers = expected(request)
    return (
        trajectory.outcome is Outcome.SUCCESS
        and [turn.tokens for turn in trajectory.turns] == [[number] for number in numbers]
        and [turn.log_probabilities for turn in trajectory.turns]
        == [[-float(number)] for number in numbers]
        and [turn.reward for turn in trajectory.turns] == [0.0] * (len(numbers) - 1) + [1.0]
        and [turn.observation for turn in trajectory.turns]
        == [f"Count: {sum(numbers[: i + 1])}" for i in range(len(numbers))]
    )


class Killer(threading.Thread):
    """A thread that kills servers at random, but never the last one of a kind that answers."""

    def __init__(self, groups: Sequence[ReplicaSet], every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._groups, self._every_s, self._random = groups, every_s, random.Random(seed)
        self._over = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self._over.wait(self._every_s * self._random.uniform(0.5, 1.5)):
            up = [
                server
                for server in self._random.choice(self._groups)._servers
                if answers(f"{server.url}/health", 1.0)
            ]
            if len(up) < 2:
                continue
            server = self._random.choice(up)
            with suppress(ProvisionError, psutil.Error, ProcessLookupError):
                for child in psutil.Process(server.pid).children(recursive=True):  # type: ignore[attr-defined]
                    os.kill(child.pid, signal.SIGKILL)
                self.kills += 1

    def end(self) -> None:
        self._over.set()
        self.join()


def collect(episodes: int, every_s: float | None, state_dir: Path, seed: int = 0) -> Report:
    """Collect groups of the counting world, with a kill about every `every_s` seconds or none."""
    draw = random.Random(seed)
    goals = [draw.randrange(5, 30) for _ in range(episodes // GROUP)]
    requests = [
        RolloutRequest(goal, group, member, 1000 * group + member)
        for group, goal in enumerate(goals)
        for member in range(GROUP)
    ]
    rollout = Rollout(
        max_concurrent_episodes=128,
        retries=20,
        turn_seconds=30,
        episode_seconds=120,
        request_seconds=5,
    )
    engine_command = [sys.executable, "-m", COMPLETION_SERVER, "{port}"]
    world_command = counting_command("counting")
    lasting: dict[str, Any] = {"restart_budget": 10**6, "state_dir": state_dir}
    with (
        local_replicas("counting", [world_command] * 3, **lasting) as worlds,
        local_replicas("engine", [engine_command] * 2, **lasting) as engines,
    ):
        engine = VllmPoolEngine(engines.urls, request_seconds=rollout.request_seconds)
        killer = Killer([worlds, engines], every_s or 1.0, seed)
        if every_s is not None:
            killer.start()
        policy = TokenAgent(engine, [CountingChatFormat()])  # type: ignore[arg-type]
        began = time.perf_counter()
        with Collector("counting", worlds.urls, policy, rollout) as collector:
            trajectories = collector.collect(
                [Batch("all", requests, RolloutSettings(HORIZON, 1.0))]
            )
        seconds = time.perf_counter() - began
        if every_s is not None:
            killer.end()
        sessions = asyncio.run(sessions_after_a_while(worlds.urls))
        engine.close()
    wrong = [
        t
        for request, t in zip(requests, trajectories, strict=True)
        if t.outcome is not Outcome.FAILED and not is_right(request, t)
    ]
    return Report(trajectories, wrong, seconds, killer.kills, sessions)


async def sessions_after_a_while(urls: Sequence[str]) -> int:
    """Return the number of sessions that are still open after the servers had time to restart."""
    sessions = -1
    for _ in range(400):
        async with EnvironmentClient(urls) as client:
            answers = list((await client.health()).values())
        if all(isinstance(answer, Health) for answer in answers):
            sessions = sum(answer.sessions for answer in answers if isinstance(answer, Health))
            if sessions == 0:
                break
        await asyncio.sleep(0.2)
    return sessions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=2000,
        help="episodes of each collection (default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=3.0,
        help="mean seconds between two kills (default: %(default)s)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calm = collect(arguments.episodes, None, Path(folder))
        storm = collect(arguments.episodes, arguments.every, Path(folder))
    print(
        f"{arguments.episodes} episodes, {storm.kills} servers killed: {len(storm.failed)} failed, "
        f"{len(storm.wrong)} wrong, "
        f"{sum(t.attempts - 1 for t in storm.trajectories)} repeated attempts, {storm.sessions} "
        f"sessions left; {storm.seconds:.1f} s, "
        f"{calm.seconds:.1f} s without the kills, ratio {storm.seconds / calm.seconds:.2f}"
    )


if __name__ == "__main__":
    main()
