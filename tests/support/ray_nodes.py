"""A Ray cluster of several nodes on this machine's loopback, as small as Ray can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Read by Ray when it is imported, here and in the processes that tests start. Without the second, Ray takes 127.0.0.1 for the machine's
# outer address, and its servers listen there.
LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
NODE = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
NOTICED_SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 20}
"""A lost node is noticed by its broken connection; a busy machine is not to be taken for a lost node."""


@contextmanager
def ray_cluster(nodes: int, cpus: int) -> Iterator[Any]:
    """A head that runs nothing but the driver, and so many nodes; each can be killed with `remove_node(node, allow_graceful=False)`."""
    os.environ.update(LOOPBACK)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "_system_config": NOTICED_SOON})
    try:
        for _ in range(nodes):
            add_node(cluster, cpus)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, cpus: int) -> Any:
    """One more node."""
    return cluster.add_node(**NODE, num_cpus=cpus)
