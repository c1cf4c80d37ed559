"""A minimal Ray cluster of several nodes on this machine's loopback interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tasks.provision.local import answers

# Ray reads these variables on import, here and in the processes that tests start. Without the
# second one it replaces 127.0.0.1 with the machine's external address and its servers listen there.
LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
NODE = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
FAILURE_DETECTION = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 20,
}
"""Lost nodes are detected by their broken connection. The threshold tolerates a busy machine."""
NO_SIDE_EFFECTS = {"worker_niceness": 0, "memory_monitor_refresh_ms": 0}
"""By default Ray runs workers at nice 15, and kills them when the machine is low on memory."""


@contextmanager
def ray_cluster(nodes: int, cpus: int) -> Iterator[Any]:
    """Start a head node for the driver and `nodes` worker nodes, and yield the cluster.

    `cluster.remove_node(node, allow_graceful=False)` kills a node.
    """
    os.environ.update(LOOPBACK)
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **NODE,
            "num_cpus": 0,
            "_system_config": FAILURE_DETECTION | NO_SIDE_EFFECTS,
        },
    )
    try:
        for _ in range(nodes):
            add_node(cluster, cpus)
        yield cluster
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        cluster.shutdown()


def add_node(cluster: Any, cpus: int) -> Any:
    """Add a node to the cluster and return it."""
    return cluster.add_node(**NODE, num_cpus=cpus)


def nodes_with(cluster: Any, *words: str) -> list[Any]:
    """Return the nodes with a server whose command line contains all the words.

    Nodes with the fewest servers come first.
    """
    found = {node: commands_on(node) for node in cluster.worker_nodes}
    holding = [
        node
        for node, commands in found.items()
        if any(all(word in command for word in words) for command in commands.values())
    ]
    return sorted(holding, key=lambda node: len(found[node]))


def commands_on(node: Any) -> dict[psutil.Process, str]:
    """Return the servers on a node as processes with their command lines."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    commands = {}
    for process in raylet.children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "subreaper" not in command and any(
                word in command for word in ("environments serve", "api_server")
            ):
                commands[process] = command
    return commands


def servers_answer(runs: Path) -> bool:
    """Return whether all servers of the only run below `runs` are healthy at their addresses."""
    files = [file for file in runs.glob(".ray-*/*/*-?") if file.name[:-2] in ("vllm", "textcraft")]
    return bool(files) and all(answers(f"{file.read_text()}/health") for file in files)


def kill_and_replace(cluster: Any, node: Any, cpus: int) -> list[psutil.Process]:
    """Kill a node as a power failure does, add a new one, and return the killed node's servers."""
    processes = list(commands_on(node))
    cluster.remove_node(node, allow_graceful=False)
    add_node(cluster, cpus)
    return processes
