"""Benchmark of the TextCraft server with 64 clients: throughput, and CPU of HTTP and sessions.

Each request has a new connection, connections are kept alive, or requests are batched. The
baselines are:

- AgentGym's server, which is on no package index. Its performance was recorded on an idle machine
  with 2 cores ("recorded").
- A FastAPI server of the same world.
- A no-op application under uvicorn.

The last two run in turn with this project's server, so that the noise of the machine cancels. CPU
is the server's user and system time minus the CPU of the same steps without a server.
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
"""Maximum number of steps of an episode. The actions are random, so few episodes end earlier."""
BATCH_CLIENTS = 4
"""More than one, so that one prepares its next request while the server handles another's."""
CONNECTIONS = {"new connection per request": False, "keep-alive": True}
BARE = "a no-op application"
RECORDED_STEPS = 2331.0
"""Steps per second of AgentGym's server with 64 clients and a new connection per request."""
RECORDED_RESETS = 1020.0
RECORDED_STEP_MS, RECORDED_RESET_MS = 0.45, 1.0
"""CPU milliseconds per step and per reset of AgentGym's server."""


def action(rng: random.Random, observation: str) -> str:
    """Return a random action: a crafting command, getting an ingredient, or the inventory."""
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
    """The clients of one round. Their tasks and actions are prepared before the measurement."""

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
        """Create the client's session."""
        self.sessions[number] = (
            yield "/create", {"minecraft_dir": None, "commands": None, "goal": None}
        )["id"]

    def reset(self, number: int, shift: int = 0) -> Client:
        """Begin the task of the client `number + shift`."""
        yield (
            "/reset",
            {"data_idx": self.tasks[(number + shift) % CLIENTS], "id": self.sessions[number]},
        )

    def resets(self, number: int) -> Client:
        """Begin `STEPS` tasks, and the client's own last."""
        for shift in range(STEPS - 1, -1, -1):
            yield from self.reset(number, shift)

    def steps(self, number: int) -> Client:
        """Perform the client's actions."""
        for command in self.actions[number]:
            yield "/step", {"action": command, "id": self.sessions[number]}

    def close(self, number: int) -> Client:
        """Close the client's session."""
        yield "/close", {"id": self.sessions[number]}

    def local_s(self, what: str) -> float:
        """Return the CPU seconds of the same resets or steps without a server."""
        world = TextCraft()
        environments = [world.create() for _ in range(CLIENTS)]
        for environment, task in zip(environments, self.tasks, strict=True):
            environment.reset(task)
        began = time.process_time()
        for number, environment in enumerate(environments):
            if what == "steps":
                for command in self.actions[number]:
                    environment.step(command)
            else:
                for shift in range(STEPS - 1, -1, -1):
                    environment.reset(self.tasks[(number + shift) % CLIENTS])
        return time.process_time() - began

    def batch_create(self) -> Client:
        """Create all sessions with their tasks by one request of this project's dialect."""
        begun = yield "/v1/create", {"items": [{"index": task} for task in self.tasks]}
        self.sessions = [one["session"] for one in begun["items"]]

    def batch_steps(self) -> Client:
        """Perform the actions of all sessions, with one request per turn."""
        for turn in range(STEPS):
            played = [
                (session, actions[turn])
                for session, actions in zip(self.sessions, self.actions, strict=True)
                if turn < len(actions)
            ]
            if not played:
                return
            yield (
                "/v1/step",
                {
                    "items": [
                        {"session": session, "turn": turn, "action": command}
                        for session, command in played
                    ]
                },
            )

    def batch_close(self) -> Client:
        """Close all sessions with one request."""
        yield "/v1/close", {"items": [{"session": session} for session in self.sessions]}


def measure(server: LocalServer, play: Play, what: str, *, keep_alive: bool) -> Load:
    """Run the method `what` of all clients concurrently."""
    return drive(
        server, [getattr(play, what)(number) for number in range(CLIENTS)], keep_alive=keep_alive
    )


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark. It takes about a minute."""
    started = (
        served("textcraft"),
        served("FastAPI", command=_other("fastapi_textcraft")),
        served("bare", command=_other("bare_asgi")),
    )
    with started[0] as ours, started[1] as fastapi, started[2] as bare:
        return _rows({"ours": ours, "FastAPI": fastapi, BARE: bare})


def _other(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.benchmarks.{module}", "{port}"]


def _rows(servers: dict[str, LocalServer]) -> list[dict[str, Any]]:
    loads: dict[tuple[str, str, str], list[Load]] = {}
    local_ms: dict[str, list[float]] = {"resets": [], "steps": []}
    batches, batch_ms = [], []
    for seed in range(ROUNDS + 1):  # the first round warms up
        play = Play(seed)
        for what, some in local_ms.items():
            some.append(play.local_s(what) * 1000)
        for server_name, server in servers.items():
            measure(server, play, "create", keep_alive=True)
            for connections, keep_alive in CONNECTIONS.items():
                for what in ("resets", "steps"):
                    loads.setdefault((server_name, what, connections), []).append(
                        measure(server, play, what, keep_alive=keep_alive)
                    )
                measure(server, play, "reset", keep_alive=True)
            measure(server, play, "close", keep_alive=True)
        plays = [Play(1000 * number + seed) for number in range(BATCH_CLIENTS)]
        drive(servers["ours"], [each.batch_create() for each in plays], keep_alive=True)
        batched = drive(servers["ours"], [each.batch_steps() for each in plays], keep_alive=True)
        drive(servers["ours"], [each.batch_close() for each in plays], keep_alive=True)
        steps = sum(len(actions) for each in plays for actions in each.actions)
        batches.append(steps / batched.wall_s)
        batch_ms.append(batched.cpu_s * 1000 / steps)

    def rates(server_name: str, what: str, connections: str) -> list[float]:
        return [load.rate for load in loads[server_name, what, connections][1:]]

    def costs(server_name: str, what: str, connections: str) -> list[float]:
        worlds = local_ms[what] if server_name != BARE else [0.0] * (ROUNDS + 1)
        return [
            load.cpu_ms - world_ms / load.requests
            for load, world_ms in zip(loads[server_name, what, connections], worlds, strict=True)
        ][1:]

    rows = []
    for what, recorded in (("resets", RECORDED_RESETS), ("steps", RECORDED_STEPS)):
        for connections in CONNECTIONS:
            name, ours = (
                f"textcraft: {what}, {CLIENTS} clients, {connections}",
                rates("ours", what, connections),
            )
            rows.append(row(f"{name}, vs. AgentGym (recorded)", ours, "1/s", [recorded] * ROUNDS))
            rows.append(
                row(f"{name}, vs. FastAPI", ours, "1/s", rates("FastAPI", what, connections))
            )
        # AgentGym's clients open a new connection per request.
        with_new_connections = rates("FastAPI", what, "new connection per request")
        rows.append(
            row(
                f"{name}, vs. FastAPI with a new connection per request",
                ours,
                "1/s",
                with_new_connections,
            )
        )
    name = f"textcraft: steps, batches of {CLIENTS}"
    rows.append(
        row(f"{name}, vs. AgentGym (recorded)", batches[1:], "1/s", [RECORDED_STEPS] * ROUNDS)
    )
    rows += [
        row(
            f"{name}, vs. one step per request, {connections}",
            batches[1:],
            "1/s",
            rates("ours", "steps", connections),
        )
        for connections in CONNECTIONS
    ]
    for connections in CONNECTIONS:
        for what in local_ms:
            name, ours = (
                f"textcraft: CPU of HTTP and sessions per {what[:-1]}, {connections}",
                costs("ours", what, connections),
            )
            rows += [
                row(f"{name}, vs. {server_name}", ours, "ms", costs(server_name, what, connections))
                for server_name in servers
                if server_name != "ours"
            ]
    rows.append(
        row(
            f"textcraft: total CPU per step, batches of {CLIENTS}, vs. AgentGym (recorded)",
            batch_ms[1:],
            "ms",
            [RECORDED_STEP_MS] * ROUNDS,
        )
    )
    for what, recorded_ms in (("resets", RECORDED_RESET_MS), ("steps", RECORDED_STEP_MS)):
        for connections in CONNECTIONS:
            spent = [load.cpu_ms for load in loads["ours", what, connections][1:]]
            name = f"textcraft: total CPU per {what[:-1]}, {connections}, vs. AgentGym (recorded)"
            rows.append(row(name, spent, "ms", [recorded_ms] * ROUNDS))
    return rows
