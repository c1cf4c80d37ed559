"""Agents and environment servers for play in the viewer.

They are started on first use and stopped with the viewer.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from configs.collection import Collection, Source
from configs.environment import World
from configs.experiment import Rollout, TurnFormat
from dashboards.live_episode import MAX_TURNS, LiveEpisode, begin
from dashboards.run_folders import RunFolder
from environments.client import EnvironmentClient
from environments.handshake import verify_servers
from environments.protocol import WorldInfo
from tasks.agents.agent import Agent, Budgets
from tasks.agents.agent_factory import open_agent
from tasks.provision.environment_servers import environment_replicas

EXPERT = "expert"
MODELS = 2
"""Most models that stay loaded. Another one replaces the one that was used longest ago."""
DEADLINE_SECONDS = 120.0


class Players:
    """Servers by environment and agents by name. All coroutines must run in one event loop.

    An episode that a replaced model plays ends its turn.
    """

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._clients = AsyncExitStack()
        self._client_of: dict[str, EnvironmentClient] = {}
        self._world_infos: dict[str, WorldInfo] = {}
        self._agents: dict[tuple[str, str], Agent] = {}
        self._models: dict[tuple[str, str], ExitStack] = {}
        self._lock = asyncio.Lock()
        self._closing = threading.Lock()

    async def client(self, world: World) -> EnvironmentClient:
        """Return a client of the environment's server, under the rules of `world`."""
        name = _name(world)
        async with self._lock:
            if name not in self._client_of:
                urls = await asyncio.to_thread(self._serve, world)
                self._world_infos[name] = await verify_servers(urls, world)
                client = EnvironmentClient(
                    urls, expected=self._world_infos[name].identity, deadline_s=DEADLINE_SECONDS
                )
                self._client_of[name] = await self._clients.enter_async_context(client)
            return self._client_of[name]

    async def begin(
        self, world: World, task: int | None, seed: int = 0, horizon: int = MAX_TURNS
    ) -> LiveEpisode:
        """Start an episode of a task in a world, by default of its first held-out task.

        Raises:
            EnvironmentCallError: The server does not answer, or the task does not exist.
        """
        client = await self.client(world)
        chosen = (await client.tasks("test"))[0] if task is None else task
        score = world.success_score or self._world_infos[_name(world)].success_score
        return await begin(client, world.name, chosen, seed, horizon, score)

    async def agent(self, world: World, source: Source) -> tuple[str, Agent]:
        """Return an agent for an environment, and its name.

        Raises:
            EngineError: The agent could not be started.
            OSError: A model or tokenizer is not available.
        """
        await self.client(world)
        name = EXPERT if source.kind == "oracle" else "/".join(Path(str(source.model)).parts[-3::2])
        async with self._lock:
            key = (_name(world), source.model_dump_json())
            if key not in self._agents:
                opened = ExitStack()
                self._agents[key] = await asyncio.to_thread(self._open, world, source, opened)
                if source.kind == "model":
                    self._models[key] = opened
            if key in self._models:
                self._models[key] = self._models.pop(key)  # behind those that are not used now
                for longest_ago in list(self._models)[:-MODELS]:
                    del self._agents[longest_ago]
                    self._models.pop(longest_ago).close()
            return name, self._agents[key]

    async def close(self) -> None:
        """Stop all servers and agents."""
        await self._clients.aclose()
        await asyncio.to_thread(self._resources.close)

    def _serve(self, world: World) -> tuple[str, ...]:
        with self._closing:
            return self._resources.enter_context(
                environment_replicas(world.name, rules=world.rules)
            ).urls

    def _open(self, world: World, source: Source, opened: ExitStack) -> Agent:
        # Only one episode runs at a time. Plain transformers starts faster than a batching engine.
        collection = Collection(
            environment=world, source=source, rollout=Rollout(engine="transformers")
        )
        with self._closing:
            self._resources.enter_context(opened)
            return opened.enter_context(open_agent(collection, self._world_infos[_name(world)]))


def world_of(run: RunFolder | None, environment: str) -> World:
    """Return a trajectory's environment with the settings of its run's recipe."""
    if run is None:
        return World(name=environment)
    given = {
        name: run.field(f"environment.{name}", None) for name in ("instruction", "success_score")
    }
    return World(name=environment, rules=run.field("environment.rules", "ours"), **given)


def checkpoint_source(run: RunFolder, checkpoint: Path) -> Source:
    """Return a run's checkpoint as an agent with its recipe's action format and dtype."""
    policy: dict[str, Any] = run.field("policy", {})
    return Source(
        kind="model",
        model=str(checkpoint),
        **{name: policy[name] for name in TurnFormat.model_fields if name in policy},
    )


def budgets_of(run: RunFolder | None, temperature: float) -> Budgets:
    """Return the token budgets of a run's recipe, or the defaults of a collection."""
    rollout: dict[str, Any] = run.field("rollout", {}) if run is not None else {}
    defaults = Rollout()
    return Budgets(
        temperature,
        rollout.get("turn_tokens", defaults.turn_tokens),
        rollout.get("trajectory_tokens", defaults.trajectory_tokens),
    )


def _name(world: World) -> str:
    return f"{world.name} {world.rules}"
