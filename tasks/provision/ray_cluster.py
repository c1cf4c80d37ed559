"""A Ray cluster: the connection to it, what its nodes must share, and placement groups, in which it sets aside what processes need.

Whoever reaches a Ray cluster can run any code on it: see docs/several-nodes.md. Where
AGENTGYM_RAY_ADDRESS is empty, this is not imported.
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
from tasks.provision.ray_actors import look, root
from tasks.tracking.shared_storage import SETTING, SharedStorage, opened

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

Bundle = dict[str, float]
Strategy = Literal["PACK", "SPREAD", "STRICT_SPREAD"]

CALLS_AT_ONCE = 8
"""Of one actor: it is asked how it is while it waits."""
CONNECT_S, LOOK_S = 5.0, 60.0
HANDED_ON = (VARIABLE, DRAWN, URLS, "DO_NOT_TRACK")
HANDED_ON_PREFIXES = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_", "NCCL_", "GLOO_", "TORCH", "OMP_", "OPENBLAS_", "MKL_")
"""Variables of this process that those on the nodes get too; the rest is their node's."""

_lock = threading.Lock()
_connected: RayCluster | None = None


class RayCluster:
    """The cluster that this process is connected to.

    Attributes:
        has_gpus: Whether any of its nodes has one.
        folder: Seen by every node; gone with this process.
    """

    def __init__(self, address: str, shared: Path, storage: str | None = None) -> None:
        """
        Args:
            address: "host:port", or "auto" for the cluster of this machine, which in any case is one of its nodes.
            shared: A folder that every node must see, e.g. that of the runs.
            storage: URL of the shared storage that every node must be able to use, where there is one.

        Raises:
            ProvisionError: No cluster answers, or a node does not see the folder; the message names the node.
        """
        _connect(address)
        self.has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        private_runs(shared)
        self._owned = OwnedFolder(".ray-", shared.absolute())
        self.folder = self._owned.path
        try:
            _check_nodes(self.folder, opened(storage))
        except BaseException:
            self.close()
            raise

    def resources(self, needs: Needs, processes: int = 1) -> Bundle:
        """What a placement group sets aside for so many processes on one node."""
        gpus = int(self.has_gpus) if needs.gpus is None else needs.gpus
        wanted = {"GPU": gpus, "CPU": needs.cpus, "memory": needs.memory_gb * 2**30}
        return {name: amount * processes for name, amount in wanted.items() if amount} or {"CPU": 0.001}  # Ray wants some

    def close(self) -> None:
        """Removes the folder."""
        self._owned.remove()


class Placement:
    """A placement group. Where a node is lost, Ray finds another place for what was set aside there."""

    def __init__(self, what: str, bundles: Sequence[Bundle], strategy: Strategy, seconds: float) -> None:
        """
        Args:
            what: For people: whose it is.
            bundles: What is set aside: each on one node.
            strategy: Ray's: how they are spread over the nodes.
            seconds: How long room is waited for.

        Raises:
            ProvisionError: There is none.
        """
        self._group = placement_group(list(bundles), strategy=strategy, name=what)
        self._bundles = list(bundles)
        if not self._group.wait(seconds):
            remove_placement_group(self._group)
            raise ProvisionError(
                f"the Ray cluster has no room for {what} within {seconds:g} s: wanted {_told(bundles)} ({strategy}); the nodes have "
                f"{_told([node['Resources'] for node in ray.nodes() if node['Alive']])}; what the trainer, vLLM and environment servers "
                "need is in the launch file (configs/launch/__init__.py)"
            )

    def actor(self, kind: type, bundle: int, *arguments: Any) -> Any:
        """An actor of this class in one of the bundles, made with this process's working directory and the arguments.

        It is not there yet, and waits for a place if its node was lost.
        """
        wanted = self._bundles[bundle]
        made = ray.remote(kind).options(
            num_cpus=wanted.get("CPU", 0),
            num_gpus=wanted.get("GPU", 0),
            memory=wanted.get("memory"),
            max_concurrency=CALLS_AT_ONCE,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
        )
        return made.remote(Path.cwd(), *arguments)

    def remove(self) -> None:
        """Gives the places back; what still runs there is ended."""
        remove_placement_group(self._group)


def connected(infrastructure: InfraSettings) -> RayCluster:
    """The cluster of the settings, one for the life of this process.

    Raises:
        ProvisionError: See `RayCluster`.
    """
    global _connected
    if infrastructure.ray_address is None:
        raise ProvisionError("AGENTGYM_RAY_ADDRESS is empty: there is no Ray cluster")
    with _lock:
        if _connected is None or not ray.is_initialized():
            _connected = RayCluster(infrastructure.ray_address, infrastructure.runs, infrastructure.shared_storage)
            atexit.register(_connected.close)
        return _connected


def answer(call: Any, what: str, seconds: float | None = None) -> Any:
    """What an actor's method returns.

    Args:
        call: What calling it gave.
        what: For people: whose answer it is.
        seconds: How long it is waited for.

    Raises:
        ProvisionError: The actor or its node is gone, or did not answer in time. What the method raises comes as it is.
    """
    try:
        return ray.get(call, timeout=seconds)
    except GetTimeoutError:
        raise ProvisionError(f"{what} did not answer within {seconds:g} s") from None
    except RayTaskError as fault:
        raise fault.cause from None
    except RayError as gone:
        raise ProvisionError(f"{what} is gone: {str(gone).strip().splitlines()[0]}") from gone


def handed_on() -> dict[str, str]:
    """The variables of this process that processes on the nodes get."""
    return {name: value for name, value in os.environ.items() if name in HANDED_ON or name.startswith(HANDED_ON_PREFIXES)}


def _connect(address: str) -> None:
    if ray.is_initialized():
        return
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except OSError as fault:
            raise ProvisionError(f"AGENTGYM_RAY_ADDRESS is {address}, but no Ray cluster answers there: {fault}") from None
    former = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace="agentgym",
            runtime_env={"env_vars": {"PYTHONPATH": root()}},
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError, RayError) as fault:
        raise ProvisionError(
            f"AGENTGYM_RAY_ADDRESS is {address}, but this machine could not join that cluster: {fault}. It must be one of its nodes: "
            f"ray start --address={address} --num-cpus=0 --num-gpus=0 --disable-usage-stats"
        ) from fault
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, former)  # Ray puts its own in place of ours


def _check_nodes(folder: Path, storage: SharedStorage | None = None) -> None:
    """Every node reads what this one writes, and this one what every node writes: in the folder, and in the shared storage.

    Raises:
        ProvisionError: One does not, or cannot run the project.
    """
    token = secrets.token_hex(16)
    (folder / "token").write_text(token, encoding="utf-8")
    if storage is not None:
        storage.write(f"{folder.name}/token", token.encode())
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    asked = {
        node: ray.remote(look)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(folder, token, sys.executable, storage.url if storage else None)
        for node in nodes
    }
    wrong: list[str] = []
    for node, call in asked.items():
        name = f"node {nodes[node]} ({node[:8]})"
        try:
            said = answer(call, name, LOOK_S)
            if not said and not (folder / node).is_file():
                said = f"writes to another {folder.parent} than this machine's"
            if not said and storage is not None and storage.read(f"{folder.name}/{node}") != token.encode():
                said = f"writes to another {storage.url} than this machine's"
        except Exception as fault:  # noqa: BLE001 - whatever kept the node from looking is what is told of it
            said = f"cannot run the project, which must be under {root()} on every node ({type(fault).__name__}: {fault})"
        if said:
            wrong.append(f"{name} {said}")
    if storage is not None:
        storage.remove(folder.name)
    if wrong:
        also = f", and must be able to use {SETTING} ({storage.url})" if storage else ""
        raise ProvisionError(
            f"{'; '.join(wrong)}. Every node of the Ray cluster must see AGENTGYM_RUNS ({folder.parent}), the project and the models "
            f"under the same paths{also}"
        )


def _told(bundles: Sequence[Mapping[str, float]]) -> str:
    def one(bundle: Mapping[str, float]) -> str:
        amounts = {"GPU": bundle.get("GPU"), "CPU": bundle.get("CPU"), "GiB": bundle.get("memory", 0) / 2**30 or None}
        return "{" + ", ".join(f"{name}: {amount:.4g}" for name, amount in amounts.items() if amount is not None) + "}"

    return ", ".join(map(one, bundles))
