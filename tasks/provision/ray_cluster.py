"""A Ray cluster: the connection, and the check of its nodes.

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
from pathlib import Path

from configs.infrastructure import InfraSettings
from configs.launch import Needs
from tasks.provision.errors import ProvisionError
from tasks.provision.private_files import OwnedFolder, private_runs
from tasks.provision.process import ROOT

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

CONNECT_S, CHECK_S = 5.0, 60.0

_lock = threading.Lock()
_connected: RayCluster | None = None


class RayCluster:
    """The cluster to which this process is connected.

    Attributes:
        has_gpus: Whether any node has a GPU.
        folder: Temporary folder that every node sees. It is removed when this process ends.
    """

    def __init__(self, address: str, shared: Path) -> None:
        """
        Args:
            address: "host:port", or "auto" for the cluster of which this machine is a node.
            shared: A folder that every node must see, e.g. the runs folder.

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
            _check_nodes(self.folder)
        except BaseException:
            self._owned.remove()
            raise

    def gpus(self, needs: Needs) -> int:
        """Return the number of GPUs of one server."""
        return int(self.has_gpus) if needs.gpus is None else needs.gpus


def connected(infrastructure: InfraSettings) -> RayCluster:
    """Return the cluster of the settings; one connection per process.

    Raises:
        ProvisionError: See `RayCluster`.
    """
    global _connected
    assert infrastructure.ray_address is not None
    with _lock:
        if _connected is None or not ray.is_initialized():
            _connected = RayCluster(infrastructure.ray_address, infrastructure.runs)
            atexit.register(_connected.close)
        return _connected


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


def check_node(folder: Path, token: str, python: str) -> str:
    """Check on this node that it shares the folder with the node that wrote the token.

    It reads the token and answers with one of its own.

    Returns:
        What is wrong on this node, in words, or "" if nothing is.
    """
    try:
        if (folder / "token").read_text(encoding="utf-8") != token:
            return f"reads a different file in {folder} than this machine wrote"
        (folder / node_id()).write_text(token, encoding="utf-8")
    except OSError as fault:
        return f"does not share {folder.parent} with this machine ({fault.strerror})"
    return "" if Path(python).exists() else f"does not have the Python interpreter {python}"


def node_id() -> str:
    """Return Ray's id of this node."""
    return str(ray.get_runtime_context().get_node_id())


def _check_nodes(folder: Path) -> None:
    """Check that every node and this machine read each other's files in the folder.

    Raises:
        ProvisionError: A node does not, or cannot run the project.
    """
    token = secrets.token_hex(16)
    (folder / "token").write_text(token, encoding="utf-8")
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    checks = {
        node: ray.remote(check_node)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(folder, token, sys.executable)
        for node in nodes
    }
    problems: list[str] = []
    for node, check in checks.items():
        try:
            problem = ray.get(check, timeout=CHECK_S)
            if not problem and not (folder / node).is_file():
                problem = f"writes to a different {folder.parent} than this machine"
        except Exception as fault:  # noqa: BLE001 - any failure of the node becomes its message
            problem = (
                f"cannot run the project, which must be under {ROOT} on every node "
                f"({type(fault).__name__}: {fault})"
            )
        if problem:
            problems.append(f"node {nodes[node]} ({node[:8]}) {problem}")
    if problems:
        raise ProvisionError(
            f"{'; '.join(problems)}. Make AGENTGYM_RUNS ({folder.parent}), the project and the "
            "models available under the same paths on every node of the Ray cluster."
        )
