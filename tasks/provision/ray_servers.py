"""Server replicas on the nodes of a Ray cluster, each with an address that outlives its node."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from configs.infrastructure import InfraSettings
from configs.launch import Needs
from environments.address import write_address
from tasks.provision.errors import LifecycleError
from tasks.provision.ray_actors import ServerActor
from tasks.provision.ray_cluster import (
    Placement,
    RayCluster,
    answer,
    connected,
    inherited_variables,
)
from tasks.provision.replica_set import ReplicaSet

ASK_S = 30.0
"""Timeout in seconds of calls that an actor answers without waiting."""


class RayServer:
    """An HTTP server on a node that Ray chooses. Implements `Server` for a ReplicaSet.

    Attributes:
        name: For people and for the log's name.
        url: Its address once started: a file with the current URL (environments/address.py). It
            stays the same when the server is restarted on another node.
    """

    def __init__(
        self, name: str, places: _Places, bundle: int, start_deadline_s: float, *arguments: Any
    ) -> None:
        """
        Args:
            name: See the attributes.
            places: The reserved resources, of which this server gets `bundle`.
            bundle: Index of the bundle.
            start_deadline_s: Seconds to become healthy, once it has a node.
            arguments: Command and environment of the server.
        """
        self.name, self.url = name, ""
        self._places, self._bundle, self._deadline_s, self._arguments = (
            places,
            bundle,
            start_deadline_s,
            arguments,
        )
        self._actor: Any = None
        self._last_log = ""
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        """Start the server, on another node if its own was lost, and return when it is healthy.

        Raises:
            ProvisionError: No resources were free, or it ended or was not healthy in time.
        """
        with self._lock:
            if self._ended:
                raise LifecycleError(f"{self.name} was ended and cannot be started again")
            self._drop()
            self._actor = actor = self._places.get().actor(
                ServerActor, self._bundle, self.name, *self._arguments, self._deadline_s
            )
        url = answer(
            actor.started_url.remote(),
            f"{self.name} on the Ray cluster",
            self._places.seconds + self._deadline_s,
        )
        self.url = write_address(self._places.folder / self.name.replace(":", "."), url)

    def alive(self) -> bool:
        """Return whether the server runs, as far as Ray can tell.

        An unreachable node counts as alive until Ray declares it lost.
        """
        try:
            return self._actor is not None and bool(
                ray.get(self._actor.alive.remote(), timeout=ASK_S)
            )
        except (TimeoutError, ActorUnavailableError):
            return True
        except RayError:  # the actor or its node died, or Ray killed it for its memory
            return False

    def end(self, grace_s: float = 1.0) -> None:
        """End the server for good. A start in another thread then fails."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._actor is not None:
                with contextlib.suppress(RayError, TimeoutError):
                    ray.get(self._actor.end.remote(grace_s), timeout=grace_s + ASK_S)
            self._drop()
        self._places.leave()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log; those read last if its node is lost."""
        if self._actor is not None:
            with contextlib.suppress(RayError, TimeoutError):
                self._last_log = ray.get(self._actor.log_tail.remote(lines), timeout=ASK_S)
        return self._last_log

    def _drop(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


class _Places:
    """The placement group of replicas, and the folder of their addresses.

    The first replica that starts reserves the resources, because waiting for them is part of a
    start. The last one that ends releases them.
    """

    def __init__(
        self, cluster: RayCluster, purpose: str, needs: Needs, replicas: int, seconds: float
    ) -> None:
        self.folder, self.seconds = cluster.folder, seconds
        self._purpose, self._bundles, self._left = (
            purpose,
            [cluster.resources(needs)] * replicas,
            replicas,
        )
        self._placement: Placement | None = None
        self._lock = threading.Lock()

    def get(self) -> Placement:
        """Return the placement group."""
        with self._lock:
            self._placement = self._placement or Placement(
                self._purpose, self._bundles, "SPREAD", self.seconds
            )
            return self._placement

    def leave(self) -> None:
        """Count one ended replica."""
        with self._lock:
            self._left -= 1
            if self._left == 0 and self._placement is not None:
                self._placement.remove()


def ray_replicas(
    infrastructure: InfraSettings,
    name: str,
    commands: Sequence[Sequence[str]],
    needs: Needs,
    *,
    environment: Mapping[str, str] | None = None,
    start_deadline_s: float = 60.0,
) -> ReplicaSet:
    """Return replicas on the nodes of the settings' Ray cluster, on different nodes if possible.

    See `local_replicas`.

    Raises:
        ProvisionError: There is no such cluster, or its nodes do not share the runs folder.
    """
    places = _Places(
        connected(infrastructure),
        f"{len(commands)} servers of {name}",
        needs,
        len(commands),
        infrastructure.trainer_start_seconds,
    )
    variables = inherited_variables() | dict(environment or {})
    return ReplicaSet(
        [
            RayServer(f"{name}-{n}", places, n, start_deadline_s, list(command), variables)
            for n, command in enumerate(commands)
        ]
    )
