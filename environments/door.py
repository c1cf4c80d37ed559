"""The doors to a world: who is let in, and the client that opens sessions there in either dialect.

A run says which world it plays and under which rules; what the servers host is compared with that before anything is played, again at every
session, and when the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from configs.environment import World
from configs.rules import Dialect
from configs.task_selection import TaskSelection, indices
from environments.agentgym_client import AgentGymClient
from environments.client import EnvironmentClient
from environments.environment import Step, TaskIndexError
from environments.errors import RefusedError, ServerFailedError, WrongWorldError
from environments.protocol import WorldInfo
from environments.registry import WORLDS, task_indices_of


class EpisodeClient(Protocol):
    """What plays episodes on environment servers, whichever dialect they speak; see `EnvironmentClient`."""

    async def start(self, index: int, *, lease_s: float = ..., deadline_s: float | None = ...) -> tuple[Any, str]: ...

    async def step(self, session: Any, action: str, *, deadline_s: float | None = ...) -> Step: ...

    async def close(self, session: Any) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None: ...


def open_client(
    urls: Sequence[str], world: str, dialect: Dialect, *, expected: str = "", deadline_s: float = 60.0, connections: int = 256
) -> EpisodeClient:
    """A client of servers of one world.

    Args:
        urls: Their addresses.
        world: The world's name.
        dialect: What they speak.
        expected: `WorldInfo.identity` of the world that is played, as `enter` told it; of no effect with AgentGym's servers.
        deadline_s: Seconds that a call may take.
        connections: Requests in flight at once.
    """
    if dialect == "agentgym":
        return AgentGymClient(urls, world, deadline_s=deadline_s, connections=connections)
    return EnvironmentClient(urls, expected=expected, deadline_s=deadline_s, connections=connections)


async def enter(urls: Sequence[str], world: World) -> WorldInfo:
    """What is played on these servers. Those of AgentGym's dialect tell nothing of it but the world: the recipe's words stand for the rest.

    Args:
        urls: The servers' addresses.
        world: What the recipe or collection names.

    Raises:
        EnvironmentCallError: A server does not answer; WrongWorldError: one hosts another world, version or set of rules.
        ValueError: AgentGym's dialect is not known for this world.
    """
    if world.dialect == "agentgym":
        async with AgentGymClient(urls, world.name) as client:
            await client.check()
        assert world.success_score is not None
        return WorldInfo(world.name, "", world.instruction or "", {}, rules="agentgym", success_score=world.success_score)
    async with EnvironmentClient(urls) as ours:
        try:
            hosted = await ours.worlds()
        except (RefusedError, ServerFailedError) as strange:
            raise WrongWorldError(
                f"a server does not speak our protocol ({strange}). If it is one of AgentGym's own, set environment.dialect: agentgym"
            ) from strange
        for url, told in hosted.items():
            _check(url, told, world)
        told = await ours.world()
    told.instruction = told.instruction if world.instruction is None else world.instruction
    told.success_score = told.success_score if world.success_score is None else world.success_score
    return told


async def task_indices(urls: Sequence[str], world: World, tasks: TaskSelection, field: str) -> list[int]:
    """The indices of the tasks of a recipe's field.

    The first and the last of given indices are begun once, to see that there are such tasks.

    Raises:
        WrongWorldError: There is no such list or task; the message names the field.
        EnvironmentCallError: A server does not answer.
    """
    if isinstance(tasks, str):
        async with EnvironmentClient(urls) as ours:
            try:
                return await ours.tasks(tasks)
            except RefusedError as unknown:
                raise WrongWorldError(f"{field}: {unknown}") from unknown
    try:
        given = indices(tasks) if world.dialect == "agentgym" else task_indices_of(world.name, tasks)
    except TaskIndexError as unknown:
        raise WrongWorldError(f"{field}: {unknown}") from unknown
    async with open_client(urls, world.name, world.dialect) as client:
        for index in sorted({min(given), max(given)}):
            try:
                session, _ = await client.start(index)
            except (RefusedError, ServerFailedError) as refused:
                raise WrongWorldError(f"{field} holds {index}, which cannot be begun: {refused}") from refused
            await client.close(session)
    return given


async def task_tags(urls: Sequence[str], tasks: TaskSelection) -> dict[int, str]:
    """The kind of each task of a named list, e.g. "depth 2"; empty where the world tells none, and for given indices."""
    if not isinstance(tasks, str):
        return {}
    async with EnvironmentClient(urls) as ours:
        return await ours.tags(tasks)


def check_same(file: Path, identity: str, what: str) -> None:
    """Keeps in a file which world a run or collection was begun on; it goes on with no other.

    Raises:
        WrongWorldError: It was begun on another.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(identity + "\n", encoding="utf-8")
        unfinished.replace(file)
        return
    begun = file.read_text(encoding="utf-8").strip()
    if begun != identity:
        raise WrongWorldError(
            f"the {what} in {file.parent} was begun on {begun}, but the servers host {identity}: go on with servers of that version, or "
            f"begin another {what} in another folder"
        )


def _check(url: str, told: WorldInfo, world: World) -> None:
    if world.name not in (told.name, told.entry) and WORLDS.get(world.name) != told.entry:
        raise WrongWorldError(
            f"{url} hosts {told.identity}, but {world.name} is to be played: start a server of it there (python -m environments serve "
            f"{world.name}), or name another in AGENTGYM_ENVIRONMENT_URLS"
        )
    if told.rules != world.rules:
        raise WrongWorldError(
            f"{url} hosts {told.name} under the rules {told.rules!r}, but {world.rules!r} are to be played by: start it with --rules "
            f"{world.rules}, or set environment.rules: {told.rules}"
        )
