"""Environment servers of a run: local processes, containers, or servers on a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from configs.infrastructure import InfraSettings, launch_of
from configs.mixture import SEPARATOR
from configs.rules import Rules
from environments.registry import image_of, variables_of
from environments.token import VARIABLE, shared_token
from tasks.provision.local import HOST
from tasks.provision.replica_set import Replicas, ReplicaSet, local_replicas

PATH_MAX = 256
IMAGES = "agentgym-env"
"""Prefix of the image names of our environment servers.

`make images` builds them, one for each set of packages that worlds need.
"""


def environment_replicas(
    world: str,
    replicas: int = 1,
    *,
    rules: Rules = "ours",
    infrastructure: InfraSettings | None = None,
    state_dir: Path | None = None,
    start_deadline_s: float = 60.0,
) -> Replicas:
    """Return replicas of one world's server, to be used in a `with` block.

    The servers refuse requests without the token in this process's environment.

    Args:
        world: The world's name, e.g. "textcraft".
        replicas: Number of servers, each with its own port.
        rules: The rules under which the world is played.
        infrastructure: Whether the servers are local processes, containers, or on the nodes of a
            Ray cluster. Containers get the world's variables, and files and folders that they name
            are mounted read-only. By default the servers are local processes.
        state_dir: For state files and logs (see ChildProcess).
        start_deadline_s: Seconds in which a replica must become healthy.
    """
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}, but at least one server is needed")
    serve = [world, "--rules", rules]
    token = {VARIABLE: shared_token()}  # shared by this process, its children and the servers
    if infrastructure is not None and infrastructure.environment_backend == "container":
        from tasks.provision.containers import ContainerServer

        variables = world_variables(world)
        containers = [
            ContainerServer(
                f"{world.replace(':', '.').replace(SEPARATOR, '.')}-{number}",
                infrastructure.environment_image or f"{IMAGES}-{image_of(world)}",
                command=serve,
                environment={**token, **variables},
                volumes=[Path(value) for value in variables.values() if _exists(value)],
                start_deadline_s=start_deadline_s,
            )
            for number in range(replicas)
        ]
        return ReplicaSet(containers, state_dir=state_dir)
    command = [
        sys.executable,
        "-m",
        "environments",
        "serve",
        *serve,
        "--host",
        "{host}",
        "--port",
        "{port}",
    ]
    if infrastructure is not None and infrastructure.ray_address is not None:
        from tasks.provision.ray_servers import RayReplicas

        return RayReplicas(
            infrastructure,
            world,
            [command] * replicas,
            launch_of(infrastructure).environment,
            environment={**token, **world_variables(world)},
            start_deadline_s=start_deadline_s,
        )
    return local_replicas(
        world,
        [command] * replicas,
        state_dir=state_dir,
        host=launch_of(infrastructure).first_node if infrastructure else HOST,
        start_deadline_s=start_deadline_s,
    )


def world_variables(world: str) -> dict[str, str]:
    """Return the variables of this process that a world reads, with absolute paths."""
    return {
        name: str(Path(value).expanduser().absolute()) if _exists(value) else value
        for name, value in variables_of(world).items()
    }


def _exists(value: str) -> bool:
    """Return whether a variable's value names an existing file or folder."""
    return bool(value) and len(value) < PATH_MAX and Path(value).expanduser().exists()
