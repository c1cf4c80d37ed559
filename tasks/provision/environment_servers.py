"""The environment servers of a run: replicas of one world's server, as local processes or as containers."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Literal

from configs.infrastructure import InfraSettings, launch_of
from configs.mixture import SEPARATOR, members
from configs.rules import Rules
from environments.registry import image_of
from environments.token import VARIABLE, shared_token
from tasks.provision.errors import ProvisionError
from tasks.provision.replica_set import ReplicaSet, local_replicas

log = logging.getLogger(__name__)

PATH_MAX = 256
IMAGES = "agentgym-env"
"""Begin of the names of our images of environment servers, which `make images` builds: one for each need of a world."""

Backend = Literal["auto", "local", "container"]


def environment_replicas(
    world: str,
    replicas: int = 1,
    *,
    rules: Rules = "ours",
    workers: int = 1,
    backend: Backend = "auto",
    image: str | None = None,
    infrastructure: InfraSettings | None = None,
    state_dir: Path | None = None,
    start_deadline_s: float = 60.0,
) -> ReplicaSet:
    """Servers of one world, to be used in a `with` block. They refuse requests without the token of this process's environment.

    Args:
        world: The world's name, e.g. "textcraft".
        replicas: Servers, each with its own port.
        rules: Under which rules the world is played.
        workers: Processes per server.
        backend: "local" processes, "container"s, or "auto": containers when an image is named and an engine answers.
        image: The container image of an environment server, listening on port 8000; by default the Dockerfile's for this world. Its
            variables go in, and the files and folders that they name can be read there.
        infrastructure: Where this names a Ray cluster, the servers run on its nodes.
        state_dir: For state files and logs; see ChildProcess.
        start_deadline_s: Seconds in which a replica must be healthy.
    """
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; at least one server is needed")
    serve = [world, "--rules", rules, "--workers", str(workers)]
    token = {VARIABLE: shared_token()}  # this process, those that it starts and the servers share it
    if _in_containers(backend, image):
        from tasks.provision.containers import ContainerServer

        variables = world_variables(world)
        containers = [
            ContainerServer(
                f"{world.replace(':', '.').replace(SEPARATOR, '.')}-{number}",
                image or f"{IMAGES}-{image_of(world)}",
                command=serve,
                environment={**token, **variables},
                volumes=[Path(value) for value in variables.values() if _is_there(value)],
                start_deadline_s=start_deadline_s,
            )
            for number in range(replicas)
        ]
        return ReplicaSet(containers, state_dir=state_dir)
    command = [sys.executable, "-m", "environments", "serve", *serve, "--host", "{host}", "--port", "{port}"]
    if infrastructure is not None and infrastructure.ray_address is not None:
        from tasks.provision.ray_servers import ray_replicas

        return ray_replicas(
            infrastructure,
            world,
            [command] * replicas,
            launch_of(infrastructure).environment,
            environment={**token, **world_variables(world)},
            start_deadline_s=start_deadline_s,
        )
    return local_replicas(world, [command] * replicas, state_dir=state_dir, start_deadline_s=start_deadline_s)


def world_variables(world: str) -> dict[str, str]:
    """The variables of this process that a world reads, e.g. SEARCHQA_DATA, relative paths made absolute."""
    prefixes = tuple(f"{member.upper()}_" for member in members(world))
    found = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    return {name: str(Path(value).absolute()) if _is_there(value) else value for name, value in found.items()}


def _is_there(value: str) -> bool:
    """Whether a variable's value names a file or folder."""
    return bool(value) and len(value) < PATH_MAX and Path(value).exists()


def _in_containers(backend: Backend, image: str | None) -> bool:
    if backend == "local" or (backend == "auto" and image is None):
        return False
    from tasks.provision.containers import connect

    try:
        connect().close()
    except ProvisionError:
        if backend == "container":
            raise
        log.warning("no container engine answers; the servers run as local processes instead of %s", image)
        return False
    return True
