"""Servers on the nodes of a Ray cluster. Ray places them, and restarts those that are lost.

Each server belongs to a task of Ray, which runs as long as the server. Ray repeats the task on
another node if its node is lost, and on any node if the server dies.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address

from configs.infrastructure import InfraSettings
from configs.launch import Needs
from environments.address import SCHEME, write_address
from environments.token import DRAWN, URLS, VARIABLE
from tasks.provision.errors import (
    ProvisionError,
    RestartBudgetError,
    StartFailedError,
    StartTimeoutError,
)
from tasks.provision.local import LocalServer
from tasks.provision.process import importing, sweep
from tasks.provision.ray_cluster import connected

RESTARTS = 10
"""Restarts of each server."""
POLL_S = 0.2
END_S = 15.0
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
"""Variables that servers on the nodes inherit from this process. Others come from their node."""


class RayReplicas:
    """Keeps servers up during a `with` block. Implements `Replicas`.

    Attributes:
        urls: Address of each server: a file with its current URL (environments/address.py). It
            stays the same when the server is restarted on another node.
    """

    def __init__(
        self,
        infrastructure: InfraSettings,
        name: str,
        commands: Sequence[Sequence[str]],
        needs: Needs,
        *,
        environment: Mapping[str, str],
        start_deadline_s: float = 60.0,
    ) -> None:
        """
        Args:
            infrastructure: Names the cluster, and how long to wait for free resources.
            name: Prefix of the servers' names and logs. Each server's number is added.
            commands: One command per server. "{host}" and "{port}" are replaced.
            needs: Resources of each server.
            environment: Variables of the servers, in addition to those that they inherit.
            start_deadline_s: Seconds in which a server must become healthy on its node.

        Raises:
            ProvisionError: There is no such cluster, or its nodes do not share the runs folder.
        """
        cluster = connected(infrastructure)
        self._deadline_s = infrastructure.trainer_start_seconds + start_deadline_s
        self._needs = {
            "num_gpus": cluster.gpus(needs),
            "num_cpus": needs.cpus,
            "memory": needs.memory_gb * 2**30 or None,
        }
        folder = Path(tempfile.mkdtemp(dir=cluster.folder))
        names = [f"{name.replace(':', '_')}-{number}" for number in range(len(commands))]
        self._files = [folder / each for each in names]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in INHERITED or name.startswith(INHERITED_PREFIXES)
        }
        self._servers = [
            (file, list(command), inherited | dict(environment), start_deadline_s)
            for file, command in zip(self._files, commands, strict=True)
        ]
        self._tasks: list[Any] = []
        self.urls = tuple(SCHEME + str(file) for file in self._files)

    def __enter__(self) -> Self:
        """Start all servers and return when all are healthy.

        Raises:
            ProvisionError: No resources were free, or a server was not healthy in time.
        """
        task = ray.remote(serve).options(
            **self._needs,
            max_retries=RESTARTS,
            retry_exceptions=[RestartBudgetError],
            scheduling_strategy="SPREAD",
        )
        self._tasks = [task.remote(Path.cwd(), *server) for server in self._servers]
        deadline = time.monotonic() + self._deadline_s
        try:
            while missing := [file.name for file in self._files if not file.exists()]:
                self.check()
                if time.monotonic() > deadline:
                    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
                    raise StartTimeoutError(
                        f"{', '.join(missing)} did not start on the Ray cluster within "
                        f"{self._deadline_s:g} s. Each requests {self._needs}, and the nodes have "
                        f"{nodes}. Reduce the resources in the launch file "
                        "(configs/launch/__init__.py) or add nodes."
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every server. Ray kills those that have not ended in time."""
        for is_forced in (False, True):
            _, running = ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
            for task in running:
                ray.cancel(task, force=is_forced)
            ray.wait(self._tasks, num_returns=len(self._tasks), timeout=END_S)

    def check(self) -> None:
        """Check that Ray still keeps the servers up.

        Raises:
            ProvisionError: A server did not start, or was lost after its last restart.
        """
        for task in ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)[0]:
            try:
                ray.get(task)
            except RayTaskError as fault:
                if isinstance(fault.cause, ProvisionError):
                    raise fault.cause from None
                raise ProvisionError(f"a server on the Ray cluster failed: {fault}") from fault
            except RayError as fault:
                raise RestartBudgetError(
                    f"a server on the Ray cluster was lost after {RESTARTS} restarts: {fault}"
                ) from fault


def serve(
    cwd: Path,
    address: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    start_deadline_s: float,
) -> None:
    """Run a server on this node, on the node's own address, until it ends.

    The server also ends with this process (see process.py), which Ray ends with the flow.

    Args:
        cwd: The flow's working directory, used if the node has it.
        address: File for the server's URL. Its name is the server's.
        command, environment, start_deadline_s: See `LocalServer`.

    Raises:
        ProvisionError: The server did not start.
        RestartBudgetError: It died, or did not start again. Ray repeats the task then, and raises
            this to the flow after the last restart.
    """
    with contextlib.suppress(OSError):
        os.chdir(cwd)
    sweep()
    server = LocalServer(
        address.name,
        command,
        host=get_node_ip_address(),
        environment=importing(environment),
        start_deadline_s=start_deadline_s,
    )
    runs_again = address.exists()
    try:
        server.start()
        write_address(address, server.url)
        while server.alive():
            time.sleep(POLL_S)
        raise RestartBudgetError(
            f"{address.name} died. Last lines of its log:\n{server.log_tail()}"
        )
    except (StartFailedError, StartTimeoutError) as fault:
        if not runs_again:
            raise
        raise RestartBudgetError(f"{address.name} did not restart: {fault}") from fault
    finally:  # also when Ray cancels this task
        server.end()
