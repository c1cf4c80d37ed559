"""A Ray cluster: the connection, the check of its nodes, and placement groups.

Anyone who can reach a Ray cluster can run code on it: see docs/several-nodes.md. This module is not
imported if AGENTGYM_RAY_ADDRESS is empty.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from configs.infrastructure import InfraSettings
from configs.launch import Needs
from environments.token import DRAWN, URLS, VARIABLE
from tasks.provision.errors import ProvisionError
from tasks.provision.private_files import OwnedFolder, private_runs
from tasks.provision.process import ROOT
from tasks.provision.ray_actors import check_node
from tasks.tracking.shared_storage import SETTING, SharedStorage, opened

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

Bundle = dict[str, float]
Strategy = Literal["PACK", "SPREAD", "STRICT_SPREAD"]

CALLS_AT_ONCE = 8
"""Concurrent calls of one actor, e.g. for its state while another call waits."""
CONNECT_S, CHECK_S = 5.0, 60.0
INHERITED = (VARIABLE, DRAWN, URLS, "DO_NOT_TRACK")
INHERITED_PREFIXES = (
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "VLLM_",
    "NCCL_",
    "GLOO_",
    "TORCH",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
)
"""Variables that processes on the nodes inherit from this process. Others come from their node."""

_lock = threading.Lock()
_connected: RayCluster | None = None


class RayCluster:
    """The cluster to which this process is connected.

    Attributes:
        has_gpus: Whether any node has a GPU.
        folder: Temporary folder that every node sees. It is removed when this process ends.
    """

    def __init__(self, address: str, shared: Path, storage: str | None = None) -> None:
        """
        Args:
            address: "host:port", or "auto" for the cluster of which this machine is a node.
            shared: A folder that every node must see, e.g. the runs folder.
            storage: URL of the shared storage that every node must be able to use, if there is one.

        Raises:
            ProvisionError: No cluster answers, or a node, which is named, does not see the folder.
        """
        _connect(address)
        self.has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        private_runs(shared)
        self._owned = OwnedFolder(".ray-", shared.absolute())
        self.close = self._owned.remove
        self.folder = self._owned.path
        try:
            _check_nodes(self.folder, opened(storage))
        except BaseException:
            self._owned.remove()
            raise

    def resources(self, needs: Needs, processes: int = 1) -> Bundle:
        """Return what a placement group reserves for `processes` processes on one node."""
        gpus = int(self.has_gpus) if needs.gpus is None else needs.gpus
        resources = {"GPU": gpus, "CPU": needs.cpus, "memory": needs.memory_gb * 2**30}
        # Ray requires at least one resource.
        return {name: amount * processes for name, amount in resources.items() if amount} or {
            "CPU": 0.001
        }


class Placement:
    """A placement group. If a node is lost, Ray moves its bundles to other nodes."""

    def __init__(
        self, what: str, bundles: Sequence[Bundle], strategy: Strategy, seconds: float
    ) -> None:
        """
        Args:
            what: What the reservation is for, shown to people.
            bundles: Resources to reserve, each bundle on one node.
            strategy: Ray's strategy for spreading bundles over nodes.
            seconds: How long to wait for free resources.

        Raises:
            ProvisionError: The resources were not free in time.
        """
        self._group = placement_group(list(bundles), strategy=strategy, name=what)
        self._bundles = list(bundles)
        if not self._group.wait(seconds):
            remove_placement_group(self._group)
            raise ProvisionError(
                f"the Ray cluster had no free resources for {what} within {seconds:g} s. "
                f"Requested: {_bundles_text(bundles)} ({strategy}). "
                "Nodes: "
                f"{_bundles_text([node['Resources'] for node in ray.nodes() if node['Alive']])}. "
                "Reduce the resources in the launch file (configs/launch/__init__.py) or add nodes."
            )

    def actor(self, kind: type, bundle: int, *arguments: Any) -> Any:
        """Create an actor of class `kind` in one of the bundles, and return before it exists.

        Its constructor gets this process's working directory and `arguments`.
        """
        resources = self._bundles[bundle]
        actor = ray.remote(kind).options(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            max_concurrency=CALLS_AT_ONCE,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            ),
        )
        return actor.remote(Path.cwd(), *arguments)

    def remove(self) -> None:
        """Release the reserved resources. Ray ends what still runs there."""
        remove_placement_group(self._group)


def connected(infrastructure: InfraSettings) -> RayCluster:
    """Return the cluster of the settings; one connection per process.

    Raises:
        ProvisionError: See `RayCluster`.
    """
    global _connected
    if infrastructure.ray_address is None:
        raise ProvisionError(
            "AGENTGYM_RAY_ADDRESS is empty. Set it to the address of a Ray cluster."
        )
    with _lock:
        if _connected is None or not ray.is_initialized():
            _connected = RayCluster(
                infrastructure.ray_address, infrastructure.runs, infrastructure.shared_storage
            )
            atexit.register(_connected.close)
        return _connected


def answer(call: Any, what: str, seconds: float | None = None) -> Any:
    """Wait for an actor's method and return its result. Its exceptions are raised unchanged.

    Args:
        call: The object reference that the remote call returned.
        what: Name of the actor, for messages.
        seconds: Timeout.

    Raises:
        ProvisionError: The actor or its node is gone, or did not answer in time.
    """
    try:
        return ray.get(call, timeout=seconds)
    except GetTimeoutError:
        raise ProvisionError(f"{what} did not answer within {seconds:g} s") from None
    except RayTaskError as fault:
        raise fault.cause from None
    except RayError as error:
        raise ProvisionError(f"{what} was lost: {str(error).strip().splitlines()[0]}") from error


def inherited_variables() -> dict[str, str]:
    """Return the variables of this process that processes on the nodes inherit."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }


def _connect(address: str) -> None:
    if ray.is_initialized():
        return
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except OSError as fault:
            raise ProvisionError(
                f"AGENTGYM_RAY_ADDRESS is {address}, but no Ray cluster answers there: {fault}"
            ) from None
    former = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace="agentgym",
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError, RayError) as fault:
        raise ProvisionError(
            f"AGENTGYM_RAY_ADDRESS is {address}, but this machine could not join that cluster: "
            f"{fault}. Make it a node with "
            f"`ray start --address={address} --num-cpus=0 --num-gpus=0 --disable-usage-stats`."
        ) from fault
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, former)  # ray.init replaces our handler


def _check_nodes(folder: Path, storage: SharedStorage | None = None) -> None:
    """Check that every node and this machine read each other's files in the folder and storage.

    Raises:
        ProvisionError: A node does not, or cannot run the project.
    """
    token = secrets.token_hex(16)
    (folder / "token").write_text(token, encoding="utf-8")
    if storage is not None:
        storage.write(f"{folder.name}/token", token.encode())
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    checks = {
        node: ray.remote(check_node)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(folder, token, sys.executable, storage.url if storage else None)
        for node in nodes
    }
    problems: list[str] = []
    for node, call in checks.items():
        name = f"node {nodes[node]} ({node[:8]})"
        try:
            problem = answer(call, name, CHECK_S)
            if not problem and not (folder / node).is_file():
                problem = f"writes to a different {folder.parent} than this machine"
            if (
                not problem
                and storage is not None
                and storage.read(f"{folder.name}/{node}") != token.encode()
            ):
                problem = f"writes to a different {storage.url} than this machine"
        except Exception as fault:  # noqa: BLE001 - any failure of the node becomes its message
            problem = f"cannot run the project, which must be under {ROOT} on every node ({type(fault).__name__}: {fault})"
        if problem:
            problems.append(f"{name} {problem}")
    if storage is not None:
        storage.remove(folder.name)
    if problems:
        also = f" Every node must also be able to use {SETTING} ({storage.url})." if storage else ""
        raise ProvisionError(
            f"{'; '.join(problems)}. Make AGENTGYM_RUNS ({folder.parent}), the project and the "
            "models available "
            f"under the same paths on every node of the Ray cluster.{also}"
        )


def _bundles_text(bundles: Sequence[Mapping[str, float]]) -> str:
    def one(bundle: Mapping[str, float]) -> str:
        amounts = {
            "GPU": bundle.get("GPU"),
            "CPU": bundle.get("CPU"),
            "GiB": bundle.get("memory", 0) / 2**30 or None,
        }
        return (
            "{"
            + ", ".join(
                f"{name}: {amount:.4g}" for name, amount in amounts.items() if amount is not None
            )
            + "}"
        )

    return ", ".join(map(one, bundles))
