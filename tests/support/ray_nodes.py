"""A Ray cluster of several nodes on this machine's loopback, as small as Ray can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tasks.provision.local import answers

# Read by Ray when it is imported, here and in the processes that tests start. Without the second,
# Ray takes 127.0.0.1 for the machine's
# outer address, and its servers listen there.
LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
NODE = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
NOTICED_SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 20,
}
"""A lost node is noticed by its broken connection; a busy machine is not to be taken for a lost node."""
AS_USUAL = {"worker_niceness": 0, "memory_monitor_refresh_ms": 0}
"""Ray runs what it starts at nice 15, and kills it when the machine's memory is nearly full, whoever filled it."""


@contextmanager
def ray_cluster(nodes: int, cpus: int) -> Iterator[Any]:
    """A head that runs nothing but the driver, and so many nodes; each can be killed with `remove_node(node, allow_graceful=False)`."""
    os.environ.update(LOOPBACK)
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={**NODE, "num_cpus": 0, "_system_config": NOTICED_SOON | AS_USUAL},
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
    """One more node."""
    return cluster.add_node(**NODE, num_cpus=cpus)


def nodes_with(cluster: Any, *words: str) -> list[Any]:
    """The nodes on which a process runs whose command line holds all the words, those first that run the least beside it."""
    found = {node: commands_on(node) for node in cluster.worker_nodes}
    holding = [
        node
        for node, commands in found.items()
        if any(all(word in command for word in words) for command in commands.values())
    ]
    return sorted(holding, key=lambda node: len(found[node]))


def commands_on(node: Any) -> dict[psutil.Process, str]:
    """The servers that run on a node: processes and their command lines."""
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
    """Whether all servers of the one run below `runs` are healthy where their addresses say that they are."""
    files = [file for file in runs.glob(".ray-*/*/*-?") if file.name[:-2] in ("vllm", "textcraft")]
    return bool(files) and all(answers(f"{file.read_text()}/health") for file in files)


def kill_and_replace(cluster: Any, node: Any, cpus: int) -> list[psutil.Process]:
    """Kills a node as a power cut does, and adds another; returns the processes that ran on it."""
    processes = list(commands_on(node))
    cluster.remove_node(node, allow_graceful=False)
    add_node(cluster, cpus)
    return processes
