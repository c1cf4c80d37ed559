"""Check which world the servers host, and open a client in either protocol.

A run defines its world and its rules. The servers' world is compared with them before the first
episode, at every session, and when a run resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from configs.environment import World
from configs.mixture import members
from configs.rules import Dialect
from configs.task_selection import TaskSelection
from environments.agentgym_client import AgentGymClient
from environments.client import EnvironmentClient
from environments.environment import Step, TaskIndexError
from environments.errors import (
    RefusedError,
    ServerFailedError,
    UnreachableError,
    WrongWorldError,
)
from environments.protocol import WorldInfo
from environments.registry import entry_of
from environments.selection import task_indices_of
from environments.token import VARIABLE


class EpisodeClient(Protocol):
    """Interface of clients that play episodes, for both protocols. See `EnvironmentClient`."""

    async def start(self, index: int, *, lease_s: float = ...) -> tuple[Any, str]: ...

    async def step(self, session: Any, action: str) -> Step: ...

    async def keep(self, session: Any) -> None: ...

    async def close(self, session: Any) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def open_client(
    urls: Sequence[str],
    world: str,
    dialect: Dialect,
    *,
    expected: str = "",
    deadline_s: float = 60.0,
    connections: int = 256,
) -> EpisodeClient:
    """Return a client of the servers of one world.

    Args:
        world: The world's name.
        expected: `WorldInfo.identity` of the world, as returned by `verify_servers`. Ignored for
            AgentGym's protocol.
        deadline_s: Time limit of a call in seconds.
        connections: Most requests in flight at once.
    """
    if dialect == "agentgym":
        return AgentGymClient(urls, world, deadline_s=deadline_s, connections=connections)
    return EnvironmentClient(
        urls, expected=expected, deadline_s=deadline_s, connections=connections
    )


async def verify_servers(urls: Sequence[str], world: World) -> WorldInfo:
    """Check the servers against the recipe and return the world that they host.

    Servers of AgentGym's protocol report only the world, so the recipe supplies the other fields.

    Args:
        urls: The servers' addresses.
        world: The world of the recipe or collection.

    Raises:
        EnvironmentCallError: A server does not answer, or wants another token.
        WrongWorldError: A server hosts another world, version or set of rules.
        ValueError: AgentGym's protocol is unknown for this world.
    """
    if world.dialect == "agentgym":
        async with AgentGymClient(urls, world.name) as client:
            await client.check()
        assert world.success_score is not None
        return WorldInfo(
            world.name,
            "",
            world.instruction or "",
            {},
            rules="agentgym",
            success_score=world.success_score,
        )
    async with EnvironmentClient(urls) as ours:
        try:
            worlds = await ours.worlds()
        except UnreachableError as away:
            raise UnreachableError(
                f"{away}. Start the server, or set AGENTGYM_ENVIRONMENT_URLS to one that runs",
                sent=away.sent,
            ) from away
        except (RefusedError, ServerFailedError) as strange:
            if strange.code == "no_token":
                refusal = RefusedError(f"{strange}. Set {VARIABLE} to the server's token")
                refusal.code, refusal.field = strange.code, VARIABLE
                raise refusal from strange
            if strange.code:
                raise
            raise WrongWorldError(
                f"environment.dialect: a server does not use this project's protocol ({strange}). "
                "If it is AgentGym's own server, set environment.dialect: agentgym",
                field="environment.dialect",
            ) from strange
        for url, each in worlds.items():
            _check(url, each, world)
        hosted = await ours.world()
    hosted.instruction = hosted.instruction if world.instruction is None else world.instruction
    hosted.success_score = (
        hosted.success_score if world.success_score is None else world.success_score
    )
    return hosted


async def task_indices(
    urls: Sequence[str], world: World, tasks: TaskSelection, field: str
) -> list[int]:
    """Return the task indices of a recipe's field.

    For given indices, the smallest and the largest are started once, to check that these tasks
    exist.

    Args:
        urls: The servers' addresses.
        tasks: A named list, indices or item ids.
        field: The recipe's field, for messages.

    Raises:
        WrongWorldError: There is no such list or task. The message names the field.
        EnvironmentCallError: A server does not answer.
    """
    if isinstance(tasks, str):
        async with EnvironmentClient(urls) as ours:
            try:
                return await ours.tasks(tasks)
            except RefusedError as unknown:
                raise WrongWorldError(
                    f"{field}: {unknown.reason or unknown}", field=field
                ) from unknown
    try:
        given = task_indices_of(world.name, tasks, world.dialect)
    except TaskIndexError as unknown:
        raise WrongWorldError(f"{field}: {unknown}", field=field) from unknown
    async with open_client(urls, world.name, world.dialect) as client:
        for index in sorted({min(given), max(given)}):
            try:
                session, _ = await client.start(index)
            except (RefusedError, ServerFailedError) as refused:
                raise WrongWorldError(
                    f"{field}: task {index} cannot be started: {refused}", field=field
                ) from refused
            await client.close(session)
    return given


async def task_tags(urls: Sequence[str], tasks: TaskSelection) -> dict[int, str]:
    """Return the tag of each task of a named list, e.g. "depth 2".

    Empty for given indices, and if the world has no tags.
    """
    if not isinstance(tasks, str):
        return {}
    async with EnvironmentClient(urls) as ours:
        return await ours.tags(tasks)


def check_same(file: Path, identity: str, what: str) -> None:
    """Record in a file which world a run or collection began on, or check it against the record.

    Args:
        identity: `WorldInfo.identity` of the servers' world.
        what: "run" or "collection", for the message.

    Raises:
        WrongWorldError: It began on another world or version.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(identity + "\n", encoding="utf-8")
        unfinished.replace(file)
        return
    begun = file.read_text(encoding="utf-8").strip()
    if begun != identity.strip():  # AgentGym's servers report no version
        raise WrongWorldError(
            f"the {what} in {file.parent} began on {begun}, but the servers host {identity}. Start "
            f"servers of the first version, or begin another {what} in another folder",
            hosted=identity,
            expected=begun,
        )


def check_same_version(measured: Path, other: Path) -> None:
    """Check that two runs or collections to compare were played on one version of a world.

    Args:
        measured: A folder with a file `world` of `check_same`.
        other: Another one. Those that record no version are not checked.

    Raises:
        WrongWorldError: They were played on different versions.
    """
    versions = [recorded_version(folder / "world") for folder in (measured, other)]
    if all(versions) and versions[0] != versions[1]:
        raise WrongWorldError(
            f"{measured} was played on version {versions[0]} of the world, but {other} on "
            f"{versions[1]}, so they cannot be compared. Play both on one version",
            hosted=versions[0],
            expected=versions[1],
        )


def recorded_version(file: Path) -> str:
    """Return the version of the world in a file of `check_same`.

    Empty without the file, and for AgentGym's servers, which report no version.
    """
    if not file.is_file():
        return ""
    return file.read_text(encoding="utf-8").strip().partition(" ")[2]


def _check(url: str, hosted: WorldInfo, world: World) -> None:
    if world.name not in (hosted.name, hosted.entry) and (
        len(members(world.name)) > 1 or entry_of(world.name) != hosted.entry
    ):
        raise WrongWorldError(
            f"{url} hosts {hosted.identity}, but environment.name is {world.name}. Start a server "
            f"of {world.name} there "
            f"(agentgym serve {world.name}), or set AGENTGYM_ENVIRONMENT_URLS to another server",
            field="environment.name",
            url=url,
            hosted=hosted.identity,
            expected=world.name,
        )
    if hosted.rules != world.rules:
        raise WrongWorldError(
            f"{url} hosts {hosted.name} under the rules {hosted.rules!r}, but environment.rules is "
            f"{world.rules!r}. Start it with --rules "
            f"{world.rules}, or set environment.rules: {hosted.rules}",
            field="environment.rules",
            url=url,
            hosted=hosted.rules,
            expected=world.rules,
        )
