"""The environment servers of a run: replicas of one world's server, as local processes or as containers."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Literal

from configs.rules import Rules
from environments.token import VARIABLE, shared_token
from tasks.provision.errors import ProvisionError
from tasks.provision.replica_set import ReplicaSet, local_replicas

log = logging.getLogger(__name__)

Backend = Literal["auto", "local", "container"]


def environment_replicas(
    world: str,
    replicas: int = 1,
    *,
    rules: Rules = "ours",
    workers: int = 1,
    backend: Backend = "auto",
    image: str | None = None,
    state_dir: Path | None = None,
    start_deadline_s: float = 60.0,
) -> ReplicaSet:
    """Servers of one world, to be used in a `with` block.

    Args:
        world: The world's name, e.g. "textcraft".
        replicas: Servers, each with its own port.
        rules: Under which rules the world is played.
        workers: Processes per server.
        backend: "local" processes, "container"s, or "auto": containers when an image is named and an engine answers.
        image: The container image of an environment server, listening on port 8000.
        state_dir: For state files and logs; see ChildProcess.
        start_deadline_s: Seconds in which a replica must be healthy.
    """
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; at least one server is needed")
    if _in_containers(backend, image):
        from tasks.provision.containers import ContainerServer

        assert image is not None
        # In a container the server listens beyond loopback. This process, those that it starts and the containers share a token.
        token = {VARIABLE: shared_token()}
        containers = [
            ContainerServer(f"{world}-{number}", image, environment=token, start_deadline_s=start_deadline_s) for number in range(replicas)
        ]
        return ReplicaSet(containers, state_dir=state_dir)
    serve = [sys.executable, "-m", "environments", "serve", world, "--rules", rules, "--port", "{port}", "--workers", str(workers)]
    return local_replicas(world, [serve] * replicas, state_dir=state_dir, start_deadline_s=start_deadline_s)


def _in_containers(backend: Backend, image: str | None) -> bool:
    if backend == "local" or (backend == "auto" and image is None):
        return False
    if image is None:
        raise ProvisionError("backend is 'container' but no image is named: name one, or use backend 'local'")
    from tasks.provision.containers import connect

    try:
        connect().close()
    except ProvisionError:
        if backend == "container":
            raise
        log.warning("no container engine answers; the servers run as local processes instead of %s", image)
        return False
    return True
