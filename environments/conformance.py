"""The conformance kit: checks that a world keeps the contract of `World` and `Environment`.

python -m environments check WORLD
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, TypeVar

import msgspec

from configs.rules import Rules
from environments.client import EnvironmentClient
from environments.environment import (
    SPLITS,
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    TaskIndexError,
    World,
    WorldError,
)
from environments.http import HttpClient
from environments.protocol import MAX_ACTION_CHARACTERS, Health, Replies, Reply, in_range
from environments.registry import load_world

MAX_TURNS = 200
"""Turn limit of the oracle's episodes."""
DEFAULT_TURNS = 20
"""Turn limit of random episodes if the world has no oracle."""
START_S = 120.0
LEASE_S = 1.0
ODD_ACTIONS = (
    "", " ", "\n", "\x00", "\x1b[31m", "\r\n\t", "\ud800", "é" * 300, "١٢٣", "-1", "1e308", "9" * 40, "None", "[]{}<>()`'\"",
    "%s %d {0} {x}", "../../etc/passwd", "; rm -rf x", "x" * 100_000, "a b " * 25_000, "y" * MAX_ACTION_CHARACTERS,
)  # fmt: skip
"""Actions that no world expects. Each must get an observation."""

T = TypeVar("T")
Result = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked, e.g. "determinism".
        result: "pass", "fail" or "skip".
        detail: Figures, the reason of a failure, or why the check was skipped.
    """

    name: str
    result: Result
    detail: str

    def __str__(self) -> str:
        return f"{self.result}  {self.name:<12}  {self.detail}"


class Failed(Exception):
    """The world breaks the contract. The message describes the violation."""


class Skipped(Exception):
    """The world does not offer what the check needs."""


@dataclass(slots=True)
class Played:
    """An episode: its task, actions and what the world answered."""

    task: int
    first: str
    actions: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The sum of the rewards."""
        return sum(step.reward for step in self.steps)

    def is_success(self, world: World) -> bool:
        """Return whether the world ended the episode with the success score."""
        return bool(self.steps) and self.steps[-1].done and self.score >= world.success_score - 1e-6


def check_world(
    name: str, rules: Rules = "ours", *, tasks: int = 3, seed: int = 0
) -> Iterator[Check]:
    """Check a world. All checks run, even after a failure.

    Yields:
        Each check as soon as it ends.

    Args:
        name: See `load_world`.
        rules: The rule set.
        tasks: Number of tasks of each split to play, evenly spaced.
        seed: Seed of the random actions.
    """
    try:
        world = load_world(name, rules)
    except (ImportError, WorldError) as fault:
        yield Check("attributes", "fail", str(fault))
        return
    kit = Kit(name, world, rules, tasks, seed)
    try:
        for check in (
            kit.attributes, kit.lists, kit.oracle, kit.floor, kit.determinism, kit.rewards, kit.fuzz, kit.wire, kit.leases, kit.speed,
        ):  # fmt: skip
            yield _performed(check)
    finally:
        world.close()


def _performed(check: Callable[[], str]) -> Check:
    try:
        return Check(check.__name__, "pass", check())
    except Skipped as reason:
        return Check(check.__name__, "skip", str(reason))
    except Failed as fault:
        return Check(check.__name__, "fail", str(fault))
    except Exception as fault:  # noqa: BLE001 - the code of a world can raise anything
        return Check(check.__name__, "fail", f"{type(fault).__name__}: {fault}"[:500])


class Kit:
    """The checks of one world. Each returns figures, or raises `Failed` or `Skipped`."""

    def __init__(self, name: str, world: World, rules: Rules, tasks: int, seed: int) -> None:
        """See `check_world`."""
        self._name, self._world, self._rules, self._seed = name, world, rules, seed
        self._per_split = tasks
        self._cpu_s, self._n_steps = 0.0, 0

    def attributes(self) -> str:
        """Check the declared values. The loader has checked their names."""
        world = self._world
        low, high = world.reward_range
        wrong: dict[str, object] = {
            "name must be a word without + and :": world.name != self._name
            and (not world.name or set(world.name) & set("+: \n")),
            f"name must be {self._name!r}, as in the registry": ":" not in self._name
            and world.name != self._name,
            "version must not be empty": not world.version,
            "instruction must not be empty": not world.instruction.strip(),
            "reward_range must be (smallest, largest)": not (
                math.isfinite(low) and math.isfinite(high) and low < high
            ),
            "max_sessions must be at least 1": world.max_sessions is not None
            and world.max_sessions < 1,
        }
        if found := [what for what, is_wrong in wrong.items() if is_wrong]:
            raise Failed("; ".join(found))
        return f"version {world.version}; optional members: {', '.join(sorted(self._offers)) or 'none'}"

    def lists(self) -> str:
        """Check the names, the disjointness and the range of the task lists."""
        lists = {
            name: list(self._world.tasks(name)) for name in sorted({*SPLITS, *self._world.lists})
        }
        for name, tasks in lists.items():
            if not tasks or len(set(tasks)) < len(tasks) or min(tasks) < 0:
                raise Failed(f"list {name!r} is empty, repeats a task or has a negative index")
            for task in {tasks[0], tasks[-1]}:
                with self._open() as session:
                    session.reset(task)
        for one, other in combinations(SPLITS, 2):
            if shared := set(lists[one]) & set(lists[other]):
                raise Failed(
                    f"lists {one!r} and {other!r} share {len(shared)} tasks, e.g. {min(shared)}"
                )
        with self._open() as session:
            _must_raise(TaskIndexError, lambda: session.reset(-1), "reset(-1)")
        _must_raise(KeyError, lambda: self._world.tasks("no such list"), "tasks('no such list')")
        return f"{len(lists)} lists; " + ", ".join(
            f"{split} {len(lists[split])}" for split in SPLITS
        )

    def oracle(self) -> str:
        """Check that the oracle solves the sample."""
        if not self._expert:
            raise Skipped("the world has no oracle")
        unsolved = [played.task for played in self._expert if not played.is_success(self._world)]
        if unsolved:
            raise Failed(f"the oracle does not solve the tasks {unsolved} within {MAX_TURNS} turns")
        return f"solves {len(self._expert)} tasks in at most {max(len(played.steps) for played in self._expert)} turns"

    def floor(self) -> str:
        """Check that random valid actions succeed less often than the oracle."""
        if "valid_actions" not in self._offers:
            raise Skipped("the world does not list its valid actions")
        if not self._expert:
            raise Skipped("there is no oracle to compare with")
        floor, ceiling = (
            sum(p.is_success(self._world) for p in some) / len(some)
            for some in (self._drawn, self._expert)
        )
        if floor >= ceiling:
            raise Failed(
                f"random valid actions succeed in {floor:.0%} of the episodes, the oracle in "
                f"{ceiling:.0%}"
            )
        return f"random valid actions succeed in {floor:.0%} of the episodes, the oracle in {ceiling:.0%}"

    def determinism(self) -> str:
        """Check that the same actions give the same answers: interleaved, and in another process."""
        episodes = self._episodes
        if (other := different(episodes, interleaved(self._world, episodes))) is not None:
            raise Failed(f"task {other} gives other answers if sessions are interleaved")
        request = json.dumps(
            [self._name, self._rules, [[played.task, played.actions] for played in episodes]]
        )
        command = [sys.executable, "-c", "from environments.conformance import replay; replay()"]
        variables = _variables() | {"PYTHONHASHSEED": str(self._seed + 1)}
        done = subprocess.run(
            command, input=request, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"another process fails: {done.stderr.strip().splitlines()[-1][:300]}")
        last = done.stdout.rstrip("\n").rpartition("\n")[2]
        again = msgspec.json.decode(last, type=list[Played])
        if (other := different(episodes, again)) is not None:
            raise Failed(f"task {other} gives other answers in another process")
        return f"{len(episodes)} episodes, {sum(len(p.steps) for p in episodes)} steps"

    def rewards(self) -> str:
        """Check that rewards are in the declared range, and scores in [0, 1]."""
        low, high = self._world.reward_range
        for played in self._episodes:
            for turn, step in enumerate(played.steps):
                if not in_range(step.reward, (low, high)):
                    raise Failed(
                        f"task {played.task}: the reward of turn {turn} is {step.reward}, outside "
                        f"of {low} to {high}"
                    )
            if self._rules == "ours" and not -1e-6 <= played.score <= 1 + 1e-6:
                raise Failed(
                    f"task {played.task}: the rewards add up to {played.score}, outside of 0 to 1"
                )
        return f"within {low:g} to {high:g}"

    def fuzz(self) -> str:
        """Check that any text gets an observation, and that an ended episode raises EpisodeOverError."""
        rng, actions = random.Random(self._seed), list(ODD_ACTIONS)
        for action in {action for played in self._episodes for action in played.actions[:3]}:
            cut = rng.randrange(len(action) + 1)
            actions += [
                action[:cut],
                action[cut:],
                action.upper(),
                action * 2,
                f" {action}\n",
                "".join(rng.sample(action, len(action))),
            ]
        task = self._sample[0]
        with self._open() as session:
            _must_raise(EpisodeOverError, lambda: session.step("x"), "step before reset")
            session.reset(task)
            for action in actions[: len(ODD_ACTIONS) + 100]:
                try:
                    step = session.step(action)
                    step.observation.encode()
                except Exception as fault:
                    raise Failed(
                        f"the action {action[:40]!r} raises {type(fault).__name__}: {fault}"[:500]
                    ) from fault
                if step.done:
                    _must_raise(EpisodeOverError, lambda: session.step("x"), "step after the end")
                    session.reset(task)
            session.close()
            _must_raise(EpisodeOverError, lambda: session.step("x"), "step after close")
        return f"{min(len(actions), len(ODD_ACTIONS) + 100)} actions"

    def wire(self) -> str:
        """Check that play behind the server and the client equals direct play."""

        async def play(client: EnvironmentClient, played: Played) -> Played:
            session, first = await client.start(played.task)
            again = Played(played.task, first, played.actions)
            for action in played.actions:
                again.steps.append(await client.step(session, action))
            await client.close(session)
            return again

        async def play_all(url: str) -> list[Played]:
            async with EnvironmentClient([url], deadline_s=START_S) as client:
                hosted = await client.world()
                if (hosted.name, hosted.version, hosted.instruction) != (
                    self._world.name,
                    self._world.version,
                    self._world.instruction,
                ):
                    raise Failed(f"the server hosts {hosted.identity}")
                return list(
                    await asyncio.gather(*(play(client, played) for played in self._episodes))
                )

        again = self._served(play_all, len(self._episodes))
        if (other := different(self._episodes, again)) is not None:
            raise Failed(f"task {other} gives other answers behind the server")
        return f"{len(again)} episodes behind a server"

    def leases(self) -> str:
        """Check that an idle session ends with its lease, and that a full server refuses sessions."""
        limit, task = min(2, self._world.max_sessions or 2), self._sample[0]

        def answer_of(reply: Reply) -> tuple[int, str | None]:
            return reply.status, reply.error.type if reply.error else None

        async def use(url: str) -> str:
            http = HttpClient(4)

            async def ask(operation: str, *items: dict[str, Any]) -> list[Reply]:
                body = json.dumps({"items": items}).encode()
                _, answer = await http.exchange(
                    "POST", f"{url}/v1/{operation}", time.monotonic() + START_S, body
                )
                return msgspec.json.decode(answer, type=Replies).items

            try:
                opened = await ask("create", *[{"index": task}] * limit)
                [beyond] = await ask("create", {"index": task})
                if {reply.status for reply in opened} != {200} or answer_of(beyond) != (
                    503,
                    "session_limit",
                ):
                    raise Failed(
                        f"with {limit} sessions open, create answers {answer_of(beyond)}, not 503 "
                        "session_limit"
                    )
                await ask("close", *({"session": reply.session} for reply in opened))
                opened = await ask("create", *[{"index": task, "lease_s": LEASE_S}] * limit)
                if {reply.status for reply in opened} != {200}:
                    raise Failed("closed sessions still count towards the limit")
                deadline = time.monotonic() + START_S
                while msgspec.json.decode(
                    (await http.exchange("GET", f"{url}/health", deadline))[1], type=Health
                ).sessions:
                    if time.monotonic() > deadline:
                        raise Failed(
                            f"{START_S:g} s after the last request, idle sessions with a lease of "
                            f"{LEASE_S:g} s are open"
                        )
                    await asyncio.sleep(0.2)
                [late] = await ask("step", {"session": opened[0].session, "turn": 0, "action": "x"})
                if answer_of(late) != (410, "session_ended"):
                    raise Failed(
                        f"after its lease a session answers {answer_of(late)}, not 410 "
                        "session_ended"
                    )
            finally:
                await http.close()
            return f"{limit} idle sessions ended after their lease of {LEASE_S:g} s"

        return self._served(use, limit)

    def speed(self) -> str:
        """Measure the CPU time of a step in this process. This check cannot fail."""
        self._episodes  # noqa: B018 - plays them
        return f"{1000 * self._cpu_s / max(1, self._n_steps):.3g} ms of CPU a step"

    @cached_property
    def _offers(self) -> frozenset[str]:
        return self._session().offers

    @cached_property
    def _sample(self) -> list[int]:
        chosen: list[int] = []
        for split in SPLITS:
            tasks = self._world.tasks(split)
            chosen += tasks[:: max(1, len(tasks) // self._per_split)][: self._per_split]
        return list(dict.fromkeys(chosen))

    @cached_property
    def _expert(self) -> list[Played]:
        if "oracle_action" not in self._offers:
            return []
        return [
            self._play(task, lambda session, _: session.oracle_action(), MAX_TURNS)
            for task in self._sample
        ]

    @cached_property
    def _drawn(self) -> list[Played]:
        """Episodes of random valid actions, or of odd ones, as long as the oracle's longest."""
        turns = max((len(played.steps) for played in self._expert), default=DEFAULT_TURNS)

        def draw(session: Environment, rng: random.Random) -> str:
            return rng.choice(
                session.valid_actions() if "valid_actions" in self._offers else ODD_ACTIONS[:2]
            )

        return [self._play(task, draw, turns) for task in self._sample]

    @property
    def _episodes(self) -> list[Played]:
        return [*self._expert, *self._drawn]

    def _play(
        self, task: int, choose: Callable[[Environment, random.Random], str], turns: int
    ) -> Played:
        rng = random.Random(f"{self._seed} {task}")
        with self._open() as session:
            played = Played(task, session.reset(task))
            while len(played.steps) < turns and not (played.steps and played.steps[-1].done):
                try:
                    action = choose(session, rng)
                except OracleError:
                    break
                began = time.process_time()
                step = session.step(action)
                self._cpu_s += time.process_time() - began
                self._n_steps += 1
                played.actions.append(action)
                played.steps.append(step)
        return played

    def _session(self) -> Environment:
        session = self._world.create()
        session.close()
        return session

    @contextmanager
    def _open(self) -> Iterator[Environment]:
        session = self._world.create()
        try:
            yield session
        finally:
            session.close()
            session.close()

    def _served(self, use: Callable[[str], Awaitable[T]], sessions: int) -> T:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "environments",
            "serve",
            self._name,
            "--rules",
            self._rules,
        ]
        command += ["--port", str(port), "--max-sessions", str(sessions)]
        url = f"http://127.0.0.1:{port}"

        async def run() -> T:
            deadline = time.monotonic() + START_S
            async with EnvironmentClient([url]) as client:
                while isinstance(health := (await client.health())[url], Exception):
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise Failed(f"the server does not start: {health}")
                    await asyncio.sleep(0.1)
            return await use(url)

        with subprocess.Popen(
            command, env=_variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server:
            try:
                return asyncio.run(run())
            finally:
                server.terminate()


def interleaved(world: World, episodes: Sequence[Played]) -> list[Played]:
    """Play the actions of all episodes again, one step of each session in turn.

    At most `world.max_sessions` sessions are open at once.
    """
    at_once = world.max_sessions or max(1, len(episodes))
    return [
        played
        for first in range(0, len(episodes), at_once)
        for played in _interleaved(world, episodes[first : first + at_once])
    ]


def _interleaved(world: World, episodes: Sequence[Played]) -> list[Played]:
    sessions = [world.create() for _ in episodes]
    try:
        again = [
            Played(played.task, session.reset(played.task), played.actions)
            for played, session in zip(episodes, sessions, strict=True)
        ]
        for turn in range(max((len(played.actions) for played in episodes), default=0)):
            for played, session in zip(again, sessions, strict=True):
                if turn < len(played.actions):
                    played.steps.append(session.step(played.actions[turn]))
        return again
    finally:
        for session in sessions:
            session.close()


def different(episodes: Sequence[Played], again: Sequence[Played]) -> int | None:
    """Return the task of the first episode that differs, or None."""
    return next(
        (one.task for one, other in zip(episodes, again, strict=True) if one != other), None
    )


def replay() -> None:
    """Play the episodes of standard input in this process, and print them."""
    name, rules, episodes = json.load(sys.stdin)
    world = load_world(name, rules)
    try:
        played = interleaved(world, [Played(task, "", actions) for task, actions in episodes])
    finally:
        world.close()
    sys.stdout.write(f"\n{msgspec.json.encode(played).decode()}\n")


def _variables() -> dict[str, str]:
    """Return variables with which a child process finds the modules that this one finds."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _must_raise(error: type[Exception], action: Callable[[], object], what: str) -> None:
    try:
        action()
    except error:
        return
    raise Failed(f"{what} must raise {error.__name__}")
