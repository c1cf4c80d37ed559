"""TextCraft behind the server: 64 clients on 2 cores, with a new connection per request, kept alive, and in batches; cost of HTTP.

AgentGym's own server is on no package index. Ours is compared with its figures as they were
recorded on a quiet machine of 2 cores
("recorded"), and side by side with a FastAPI server of the same world and with an application that
does nothing under uvicorn: there the
noise of a machine cancels. CPU is the server's, the kernel's part included, less what the same
steps take without a server.
"""

from __future__ import annotations

import random
import re
import sys
import time
from typing import Any

from environments.textcraft.world import TextCraft
from tasks.provision.local import LocalServer
from tests.benchmarks.load import Client, Load, drive, row, served

CLIENTS = 64
ROUNDS = 5
STEPS = 40
"""Of an episode at most. Actions are random: few episodes end before."""
BATCH_CLIENTS = 4
"""So that one thinks out its next request while the server works for another."""
HOWS = {"new connection per request": False, "keep-alive": True}
BARE = "an application that does nothing"
RECORDED_STEPS = 2331.0
"""Steps per second of AgentGym's server with 64 clients and a new connection per request."""
RECORDED_RESETS = 1020.0
RECORDED_STEP_MS, RECORDED_RESET_MS = 0.45, 1.0
"""CPU of AgentGym's server for one of each."""


def action(rng: random.Random, observation: str) -> str:
    """A random action that the first observation suggests: a crafting command, something that one needs, or a look at what is held."""
    commands = re.findall(r"^craft (\d+) (.*?) using (.*)$", observation, re.M)
    chance = rng.random()
    if chance < 0.15:
        return "inventory"
    count, output, needed = rng.choice(commands)
    return (
        "get " + rng.choice(needed.split(", "))
        if chance < 0.6
        else f"craft {count} {output} using {needed}"
    )


class Play:
    """The clients of one round: their sessions, tasks and actions, all thought out before the clock runs."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        world = TextCraft()
        tasks = world.tasks("train")
        self.tasks = [rng.choice(tasks) for _ in range(CLIENTS)]
        self.actions = []
        for task in self.tasks:
            session = world.create()
            first, actions, done = session.reset(task), [], False
            while not done and len(actions) < STEPS:
                actions.append(action(rng, first))
                done = session.step(actions[-1]).done
            self.actions.append(actions)
        self.sessions: list[Any] = [0] * CLIENTS

    def create(self, number: int) -> Client:
        """Opens a session."""
        self.sessions[number] = (
            yield "/create", {"minecraft_dir": None, "commands": None, "goal": None}
        )["id"]

    def reset(self, number: int, shift: int = 0) -> Client:
        """Begins the client's task, or that of the client `shift` further."""
        yield (
            "/reset",
            {"data_idx": self.tasks[(number + shift) % CLIENTS], "id": self.sessions[number]},
        )

    def resets(self, number: int) -> Client:
        """Begins tasks, the client's own at last."""
        for shift in range(STEPS - 1, -1, -1):
            yield from self.reset(number, shift)

    def steps(self, number: int) -> Client:
        """Performs the client's actions."""
        for said in self.actions[number]:
            yield "/step", {"action": said, "id": self.sessions[number]}

    def close(self, number: int) -> Client:
        """Ends the session."""
        yield "/close", {"id": self.sessions[number]}

    def alone_s(self, what: str) -> float:
        """CPU seconds of the same resets or steps without a server."""
        world = TextCraft()
        environments = [world.create() for _ in range(CLIENTS)]
        for environment, task in zip(environments, self.tasks, strict=True):
            environment.reset(task)
        began = time.process_time()
        for number, environment in enumerate(environments):
            if what == "steps":
                for said in self.actions[number]:
                    environment.step(said)
            else:
                for shift in range(STEPS - 1, -1, -1):
                    environment.reset(self.tasks[(number + shift) % CLIENTS])
        return time.process_time() - began

    def batch_create(self) -> Client:
        """Opens all sessions of our dialect with one request, each with its task."""
        begun = yield "/v1/create", {"items": [{"index": task} for task in self.tasks]}
        self.sessions = [one["session"] for one in begun["items"]]

    def batch_steps(self) -> Client:
        """Performs the actions of all sessions, a turn of all with each request."""
        for turn in range(STEPS):
            played = [
                (session, said[turn])
                for session, said in zip(self.sessions, self.actions, strict=True)
                if turn < len(said)
            ]
            if not played:
                return
            yield (
                "/v1/step",
                {
                    "items": [
                        {"session": session, "turn": turn, "action": said}
                        for session, said in played
                    ]
                },
            )

    def batch_close(self) -> Client:
        """Ends all sessions with one request."""
        yield "/v1/close", {"items": [{"session": session} for session in self.sessions]}


def measure(server: LocalServer, play: Play, what: str, *, keep_alive: bool) -> Load:
    """All clients do `what` at once."""
    return drive(
        server, [getattr(play, what)(number) for number in range(CLIENTS)], keep_alive=keep_alive
    )


def run() -> list[dict[str, Any]]:
    """The rows of the benchmark, about a minute."""
    started = (
        served("textcraft"),
        served("FastAPI", command=_other("fastapi_textcraft")),
        served("bare", command=_other("bare_asgi")),
    )
    with started[0] as ours, started[1] as theirs, started[2] as bare:
        return _rows({"ours": ours, "FastAPI": theirs, BARE: bare})


def _other(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.benchmarks.{module}", "{port}"]


def _rows(servers: dict[str, LocalServer]) -> list[dict[str, Any]]:
    loads: dict[tuple[str, str, str], list[Load]] = {}
    alone_ms: dict[str, list[float]] = {"resets": [], "steps": []}
    batches, batch_ms = [], []
    for seed in range(ROUNDS + 1):  # the first round warms up
        play = Play(seed)
        for what, some in alone_ms.items():
            some.append(play.alone_s(what) * 1000)
        for who, server in servers.items():
            measure(server, play, "create", keep_alive=True)
            for how, keep_alive in HOWS.items():
                for what in ("resets", "steps"):
                    loads.setdefault((who, what, how), []).append(
                        measure(server, play, what, keep_alive=keep_alive)
                    )
                measure(server, play, "reset", keep_alive=True)
            measure(server, play, "close", keep_alive=True)
        plays = [Play(1000 * number + seed) for number in range(BATCH_CLIENTS)]
        drive(servers["ours"], [each.batch_create() for each in plays], keep_alive=True)
        batched = drive(servers["ours"], [each.batch_steps() for each in plays], keep_alive=True)
        drive(servers["ours"], [each.batch_close() for each in plays], keep_alive=True)
        steps = sum(len(said) for each in plays for said in each.actions)
        batches.append(steps / batched.wall_s)
        batch_ms.append(batched.cpu_s * 1000 / steps)

    def rates(who: str, what: str, how: str) -> list[float]:
        return [load.rate for load in loads[who, what, how][1:]]

    def costs(who: str, what: str, how: str) -> list[float]:
        worlds = alone_ms[what] if who != BARE else [0.0] * (ROUNDS + 1)
        return [
            load.cpu_ms - world_ms / load.requests
            for load, world_ms in zip(loads[who, what, how], worlds, strict=True)
        ][1:]

    rows = []
    for what, recorded in (("resets", RECORDED_RESETS), ("steps", RECORDED_STEPS)):
        for how in HOWS:
            name, mine = f"textcraft: {what}, {CLIENTS} clients, {how}", rates("ours", what, how)
            rows.append(row(f"{name}, AgentGym's recorded", mine, "1/s", [recorded] * ROUNDS))
            rows.append(row(f"{name}, beside FastAPI", mine, "1/s", rates("FastAPI", what, how)))
        as_theirs = rates(
            "FastAPI", what, "new connection per request"
        )  # which AgentGym's clients open
        rows.append(
            row(f"{name}, beside FastAPI with a new connection per request", mine, "1/s", as_theirs)
        )
    name = f"textcraft: steps, batches of {CLIENTS}"
    rows.append(row(f"{name}, AgentGym's recorded", batches[1:], "1/s", [RECORDED_STEPS] * ROUNDS))
    rows += [
        row(f"{name}, beside one a request, {how}", batches[1:], "1/s", rates("ours", "steps", how))
        for how in HOWS
    ]
    for how in HOWS:
        for what in alone_ms:
            name, mine = (
                f"textcraft: CPU of HTTP and sessions, of a {what[:-1]}, {how}",
                costs("ours", what, how),
            )
            rows += [
                row(f"{name}, beside {who}", mine, "ms", costs(who, what, how))
                for who in servers
                if who != "ours"
            ]
    rows.append(
        row(
            f"textcraft: all CPU of a step, batches of {CLIENTS}, AgentGym's recorded",
            batch_ms[1:],
            "ms",
            [RECORDED_STEP_MS] * ROUNDS,
        )
    )
    for what, recorded_ms in (("resets", RECORDED_RESET_MS), ("steps", RECORDED_STEP_MS)):
        for how in HOWS:
            spent = [load.cpu_ms for load in loads["ours", what, how][1:]]
            name = f"textcraft: all CPU of a {what[:-1]}, {how}, AgentGym's recorded"
            rows.append(row(name, spent, "ms", [recorded_ms] * ROUNDS))
    return rows
