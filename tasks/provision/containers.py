"""A server in a container. The engine chooses the port, and labels name the owner.

The container has no capabilities, no root, a read-only file system, and limits on memory and
processes. It ends with its owner in one of three ways:
- `end` removes it.
- A process that watches the owner removes it (`watch`).
- If that process was killed too, the sweep before the next start removes it.

    python -m tasks.provision.containers OWNER
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import docker
import docker.errors
import requests
from docker.models.containers import Container

from tasks.provision.errors import (
    LifecycleError,
    ProvisionError,
    StartFailedError,
    StartTimeoutError,
)
from tasks.provision.local import HOST, answers
from tasks.provision.process import importing, is_gone, this_process

LABEL = "provision.name"
OWNER_LABEL = "provision.owner"
NOBODY = "65534:65534"
"""User inside the container if this process runs as root; otherwise it is this process's user."""
PROCESSES = 512
PORT = "8000/tcp"
"""Port on which the server listens inside the container."""
REMOVALS = 3
TEMPORARY = {"/tmp": "rw,nosuid,nodev,size=1g,mode=1777"}
SHARED_MEMORY = "1g"
"""Shared memory, which Chromium uses to exchange rendered pages."""
FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException)
"""Exceptions of the Docker client, and of its HTTP library when an engine on TCP is away."""


def connect(timeout_s: int = 20) -> docker.DockerClient:
    """Connect to the container engine that the environment names.

    Raises:
        ProvisionError: No engine answers.
    """
    try:
        client = docker.from_env(timeout=timeout_s)
        client.ping()
    except FAULTS as fault:
        raise ProvisionError(f"the container engine does not answer: {fault}") from fault
    return client


_lock = threading.Lock()
_watch: subprocess.Popen[bytes] | None = None


class ContainerServer:
    """An HTTP server in a container, which is removed when it ends."""

    def __init__(
        self,
        name: str,
        image: str,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        volumes: Sequence[Path] = (),
        memory: str = "4g",
        start_deadline_s: float = 60.0,
    ) -> None:
        """
        Args:
            name: Part of the container's name, for people.
            image: An image that the engine has.
            command: Replaces the image's command, or gives its entry point's arguments.
            environment: Variables set in the container.
            volumes: Files and folders of this machine, mounted read-only under the same path.
            memory: Memory limit. The container is killed above it.
            start_deadline_s: Seconds in which it must become healthy.
        """
        self.name = name
        self._image = image
        self._command = list(command) if command else None
        self._environment = dict(environment or {})
        self._volumes = {str(path): {"bind": str(path), "mode": "ro"} for path in volumes}
        self._memory = memory
        self._start_deadline_s = start_deadline_s
        self._client = connect()
        self._container: Container | None = None
        self._port: int | None = None
        self._last_log = ""
        self._lock = threading.Lock()
        self._ended = False

    @property
    def url(self) -> str:
        """The base URL once started. It stays the same over restarts."""
        if self._port is None:
            raise LifecycleError(f"{self.name} has not been started")
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        """Start the container, or a new one on the same port, and return when it is healthy.

        Raises:
            ProvisionError: The engine refused, or the server ended or was not healthy in time.
        """
        sweep(self._client)
        _start_watch()
        with self._lock:
            if self._ended:
                raise LifecycleError(f"{self.name} was ended and cannot be started again")
            self._remove()
            try:
                self._container = container = self._client.containers.run(  # type: ignore[call-overload]  # the stubs lack (host, None)
                    self._image,
                    self._command,
                    detach=True,
                    init=True,
                    name=f"{self.name}-{uuid.uuid4().hex[:8]}",
                    labels={LABEL: self.name, OWNER_LABEL: this_process()},
                    environment=self._environment,
                    ports={PORT: (HOST, self._port)},
                    volumes=self._volumes,
                    user=f"{os.getuid()}:{os.getgid()}" if os.getuid() else NOBODY,
                    read_only=True,
                    tmpfs=TEMPORARY,
                    shm_size=SHARED_MEMORY,
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges"],
                    mem_limit=self._memory,
                    memswap_limit=self._memory,
                    pids_limit=PROCESSES,
                )
            except FAULTS as fault:
                raise ProvisionError(
                    f"the container engine could not start {self.name} from {self._image}: {fault}"
                ) from fault
        deadline = time.monotonic() + self._start_deadline_s
        while True:
            port = self._published(container)
            if port is not None and answers(f"http://{HOST}:{port}/health"):
                self._port = port
                return
            if not self.alive() or time.monotonic() > deadline:
                alive, tail = self.alive(), self.log_tail()
                self._remove()
                if alive:
                    raise StartTimeoutError(
                        f"{self.name} was not healthy after {self._start_deadline_s:g} s. Last "
                        f"lines of its log:\n{tail}"
                    )
                raise StartFailedError(
                    f"{self.name} ended during its start. Last lines of its log:\n{tail}"
                )
            time.sleep(0.1)

    def alive(self) -> bool:
        """Return whether the container is running."""
        container = self._container
        if container is None:
            return False
        try:
            container.reload()
        except docker.errors.NotFound:
            return False
        except FAULTS as fault:
            raise ProvisionError(
                f"the container engine does not answer a query about {self.name}: {fault}"
            ) from fault
        return bool(container.status in ("created", "running"))

    def end(self, grace_s: float = 1.0) -> None:
        """End and remove the container for good. A start in another thread then fails."""
        with self._lock:
            self._ended = True
            if self._container is not None:
                with contextlib.suppress(*FAULTS):
                    self._container.stop(timeout=max(1, round(grace_s)))
            self._remove()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the container's log."""
        if self._container is not None:
            with contextlib.suppress(*FAULTS):
                self._last_log = self._container.logs(tail=lines).decode(errors="replace")
        return self._last_log

    def _published(self, container: Container) -> int | None:
        """Return the port on this machine, or None until the engine reports it."""
        with contextlib.suppress(*FAULTS):
            container.reload()
            published = (container.ports or {}).get(PORT)
            if published:
                return int(published[0]["HostPort"])
        return None

    def _remove(self) -> None:
        if self._container is not None:
            self.log_tail()
            with contextlib.suppress(*FAULTS):
                self._container.remove(force=True, v=True)
            self._container = None


def sweep(client: docker.DockerClient) -> list[str]:
    """Remove containers whose owner, a process of this machine, is gone, and return their names.

    Raises:
        ProvisionError: The container engine does not answer.
    """
    removed: list[str] = []
    try:
        found = client.containers.list(
            all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
        )
    except FAULTS as fault:
        raise ProvisionError(f"the container engine does not list containers: {fault}") from fault
    for container in found:
        if is_gone(container.labels[OWNER_LABEL]):
            with contextlib.suppress(*FAULTS):  # another sweep was faster
                container.remove(force=True, v=True)
                removed.append(container.name or "")
    return removed


def _start_watch() -> None:
    """Start the process that removes this process's containers at its end, if there is none.

    Only this process holds the other end of the watching process's standard input.
    """
    global _watch
    with _lock:
        if _watch is None or _watch.poll() is not None:
            _watch = subprocess.Popen(
                [sys.executable, "-m", __name__, this_process()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | importing(),
                start_new_session=True,
            )


def watch(owner: str) -> None:
    """Wait for the owner's end, then remove its containers, including those that are starting."""
    sys.stdin.buffer.read()
    client = connect()
    for _ in range(REMOVALS):
        for container in client.containers.list(
            all=True, filters={"label": f"{OWNER_LABEL}={owner}"}
        ):
            with contextlib.suppress(*FAULTS):
                container.remove(force=True, v=True)
        time.sleep(1.0)


if __name__ == "__main__":
    watch(sys.argv[1])
