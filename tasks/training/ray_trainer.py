"""The trainer on nodes of a Ray cluster.

An actor on each node runs torchrun there. The first actor's node is the rendezvous of the ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Literal

import ray
from ray.exceptions import ActorUnavailableError, RayError

from configs.infrastructure import InfraSettings
from tasks.inference.token_guard import token_variables
from tasks.provision.errors import ProvisionError
from tasks.provision.ipc import ConnectionClosedError
from tasks.provision.local import ON_LOOPBACK
from tasks.provision.process import last_lines
from tasks.provision.ray_actors import TrainerActor
from tasks.provision.ray_cluster import Placement, RayCluster, answer, inherited_variables
from tasks.training.local_trainer import (
    VERDICT_SECONDS,
    default_processes,
    hung_rank,
    launch_command,
    read_verdict,
    trainer_launch,
    trainer_variables,
    write_job,
)
from tasks.training.messages import TrainerJob

ASK_SECONDS = 60.0
"""Timeout of a call that an actor answers without waiting."""


class RayTrainer:
    """The trainer's processes on Ray nodes.

    The launch file sets the number of nodes and processes. Ray chooses the nodes.
    """

    def __init__(self, job: TrainerJob, infrastructure: InfraSettings, cluster: RayCluster) -> None:
        self._job, self._infrastructure, self._cluster = job, infrastructure, cluster
        self._launch = trainer_launch(infrastructure)
        self.log_path = job.folder / "trainer.log"
        self._verdicts = [
            job.folder / f"trainer-{node}.verdict" for node in range(self._launch.nodes)
        ]
        self._placement: Placement | None = None
        self._actors: list[Any] = []
        self._nodes: list[str] = []

    def start(self) -> None:
        """Wait for free resources and start the processes. `connect` waits for the main process.

        Raises:
            ProvisionError: The cluster has no free resources, or a node is lost during the start.
        """
        job, nodes, seconds = (
            self._job,
            self._launch.nodes,
            self._infrastructure.trainer_start_seconds,
        )
        processes = self._launch.processes or default_processes(self._infrastructure)
        bundle = self._cluster.resources(self._launch.trainer, processes)
        what = f"the trainer's {nodes} x {processes} processes"
        self._placement = Placement(
            what, [bundle] * nodes, "STRICT_SPREAD" if nodes > 1 else "PACK", seconds
        )
        self._actors = [self._placement.actor(TrainerActor, node) for node in range(nodes)]
        points = [
            answer(actor.addresses.remote(), "a node of the trainer", ASK_SECONDS)
            for actor in self._actors
        ]
        self._nodes = [address for address, _, _ in points]
        rendezvous, job_file = points[0][:2], write_job(job, points[0][2])
        environment = {
            **inherited_variables(),
            **token_variables(),
            **trainer_variables(),
            **(ON_LOOPBACK if nodes == 1 else {}),
        }
        for node, actor in enumerate(self._actors):
            self._verdicts[node].unlink(missing_ok=True)
            command = launch_command(
                self._infrastructure,
                job.experiment.policy.dtype,
                job_file,
                self._verdicts[node].absolute(),
                node,
                rendezvous,
            )
            log = self.log_path if node == 0 else self.log_path.with_name(f"trainer-{node}.log")
            answer(
                actor.start.remote(command, environment, log.absolute()),
                self._name(node),
                ASK_SECONDS,
            )

    def connect(self, seconds: float) -> RayConnection:
        """Wait for the main process to connect.

        Raises:
            ConnectionClosedError: It did not connect in time, or its node is lost.
        """
        _closed(
            lambda: answer(
                self._actors[0].connect.remote(seconds), self._name(0), seconds + ASK_SECONDS
            )
        )
        return RayConnection(self._actors[0], self._name(0), self._ended_node)

    def wait(self, seconds: float) -> int | None:
        """Wait for the main process's launcher to exit and return its exit status.

        Returns None if the launcher still runs after `seconds`.
        """
        until = time.monotonic() + seconds
        with contextlib.suppress(ProvisionError):
            while time.monotonic() < until:
                status = answer(self._actors[0].exit_status.remote(), self._name(0), ASK_SECONDS)
                if status is not None:
                    return int(status)
                time.sleep(0.2)
        return None

    def killed(self) -> str | None:
        """Describe the lost node or the process that a signal killed; None if there is none."""
        until = time.monotonic() + VERDICT_SECONDS
        while time.monotonic() < until:
            if lost := self.lost():
                return lost
            verdicts = [text for text in map(read_verdict, self._verdicts) if text]
            if killed := next((text for text in verdicts if "was killed" in text), None):
                return killed
            if len(verdicts) == len(self._actors):
                return None
            time.sleep(0.2)
        return None

    def lost(self) -> str | None:
        """Describe the lost nodes, as far as Ray has detected them, or a rank that hung."""
        lost = [
            self._name(node) for node, actor in enumerate(self._actors) if _state(actor) == "lost"
        ]
        return f"{' and '.join(lost)} was lost" if lost else hung_rank(self._verdicts)

    def end(self) -> None:
        """Stop all remaining processes, on all nodes."""
        if endings := [actor.end.remote() for actor in self._actors]:
            with contextlib.suppress(RayError):
                ray.wait(endings, num_returns=len(endings), timeout=ASK_SECONDS)
        if self._placement is not None:
            self._placement.remove()
            self._placement = None
        self._actors = []

    def log_tail(self) -> str:
        """Return the last log lines of the main process's node."""
        return last_lines(self.log_path)

    def _name(self, node: int) -> str:
        return f"node {node} of the trainer ({self._nodes[node] if self._nodes else 'starting'})"

    def _ended_node(self) -> str | None:
        """Describe the first node that is lost or has exited; None if all are running."""
        states = {self._name(node): _state(actor) for node, actor in enumerate(self._actors)}
        return next((f"{name} {state}" for name, state in states.items() if state != "runs"), None)


class RayConnection:
    """The connection to the trainer's main process, through the actor on its node."""

    def __init__(self, actor: Any, name: str, ended: Callable[[], str | None]) -> None:
        """`ended` describes a node whose processes have exited, or returns None.

        It is called when no event arrived from the main process.
        """
        self._actor, self._name, self._ended = actor, name, ended

    def send(self, command: object) -> None:
        """Send a command.

        Raises:
            ConnectionClosedError: The process has exited.
        """
        _closed(lambda: answer(self._actor.send.remote(command), self._name, ASK_SECONDS))

    def receive(self, timeout: float) -> object | None:
        """Return the next event, or None if none arrives within `timeout` seconds.

        Raises:
            ConnectionClosedError: The main process, or one on another node, has exited.
        """
        event: object = _closed(
            lambda: answer(self._actor.receive.remote(timeout), self._name, timeout + ASK_SECONDS)
        )
        if event is None and (ended := self._ended()) is not None:
            raise ConnectionClosedError(ended)
        return event

    def close(self) -> None:
        """Do nothing. The connection closes when the actor stops."""


def _closed(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ProvisionError as gone:
        raise ConnectionClosedError(str(gone)) from gone


def _state(actor: Any) -> Literal["runs", "ended", "lost"]:
    """Return the state of a node's processes.

    An unreachable node may come back, so it counts as lost only once Ray has given it up.
    """
    try:
        return (
            "runs" if ray.get(actor.exit_status.remote(), timeout=ASK_SECONDS) is None else "ended"
        )
    except (TimeoutError, ActorUnavailableError):
        return "runs"
    except RayError:  # includes actors that Ray killed because memory ran out
        return "lost"
