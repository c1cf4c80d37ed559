"""Who can play in the viewer: servers of the worlds and agents, started when they are first asked for and ended with the viewer."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from configs.collection import TRAINED_FORM, Collection, Source
from configs.environment import World
from configs.experiment import Rollout
from dashboards.run_folders import RunFolder
from environments.client import EnvironmentClient
from environments.door import enter
from environments.protocol import WorldInfo
from tasks.agents.agent import Agent, Budgets
from tasks.agents.agent_factory import open_agent
from tasks.provision.environment_servers import environment_replicas

EXPERT = "the expert"
DEADLINE_SECONDS = 120.0


class Players:
    """Servers by world and agents by name. Its coroutines belong to one event loop."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._clients = AsyncExitStack()
        self._client_of: dict[str, EnvironmentClient] = {}
        self._told_by: dict[str, WorldInfo] = {}
        self._agents: dict[tuple[str, str], Agent] = {}
        self._one = asyncio.Lock()
        self._closing = threading.Lock()

    async def client(self, world: World) -> EnvironmentClient:
        """A client of the world's server, under its rules."""
        name = _name(world)
        async with self._one:
            if name not in self._client_of:
                urls = await asyncio.to_thread(self._serve, world)
                self._told_by[name] = await enter(urls, world)
                client = EnvironmentClient(urls, expected=self._told_by[name].identity, deadline_s=DEADLINE_SECONDS)
                self._client_of[name] = await self._clients.enter_async_context(client)
            return self._client_of[name]

    async def agent(self, world: World, source: Source) -> tuple[str, Agent]:
        """An agent of the world, and its name.

        Raises:
            EngineError: It could not be started.
            OSError: A model or tokenizer is not to be had.
        """
        await self.client(world)
        name = EXPERT if source.kind == "oracle" else "/".join(Path(str(source.model)).parts[-3::2])
        async with self._one:
            key = (_name(world), source.model_dump_json())
            if key not in self._agents:
                self._agents[key] = await asyncio.to_thread(self._open, world, source)
            return name, self._agents[key]

    async def close(self) -> None:
        """Ends all of it."""
        await self._clients.aclose()
        await asyncio.to_thread(self._held.close)

    def _serve(self, world: World) -> tuple[str, ...]:
        with self._closing:
            return self._held.enter_context(environment_replicas(world.name, rules=world.rules, backend="local")).urls

    def _open(self, world: World, source: Source) -> Agent:
        # One episode at a time needs no engine for many: plain transformers starts at once.
        collection = Collection(environment=world, source=source, rollout=Rollout(engine="transformers"))
        with self._closing:
            return self._held.enter_context(open_agent(collection, self._told_by[_name(world)]))


def world_of(run: RunFolder | None, environment: str) -> World:
    """The world of a trajectory, under the rules that its run's recipe names."""
    rules = run.field("environment.rules", "ours") if run is not None else "ours"
    return World(name=environment, rules=rules)


def checkpoint_source(run: RunFolder, checkpoint: Path) -> Source:
    """A run's checkpoint as an agent, with the format and number type of its recipe."""
    policy: dict[str, Any] = run.field("policy", {})
    return Source(
        kind="model",
        model=str(checkpoint),
        **{name: policy[name] for name in TRAINED_FORM if name in policy},
    )


def budgets_of(run: RunFolder | None, temperature: float) -> Budgets:
    """The budgets of a run's recipe, or those of a collection by default."""
    rollout: dict[str, Any] = run.field("rollout", {}) if run is not None else {}
    usual = Rollout()
    return Budgets(temperature, rollout.get("turn_tokens", usual.turn_tokens), rollout.get("trajectory_tokens", usual.trajectory_tokens))


def _name(world: World) -> str:
    return f"{world.name} {world.rules}"
