"""A server as a container: the engine chooses the port, labels name the owner.

It has no capabilities, no root, a file system that it cannot write and bounded memory and processes. It ends with its owner: by `end`; by
a process that watches the owner (container_reaper.py); or, where that was killed too, by the sweep before the next start.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import docker
import docker.errors
import requests
from docker.models.containers import Container

from tasks.provision.container_watch import watch_over
from tasks.provision.errors import ProvisionError
from tasks.provision.local import HOST, answers
from tasks.provision.process import started_at

LABEL = "provision.name"
OWNER_LABEL = "provision.owner"
NOBODY = "65534:65534"
"""Who runs inside where this process is root's; else it is this process's user, who can read the files that are passed in."""
PROCESSES = 512
REMOVALS = 3
TEMPORARY = {"/tmp": "rw,nosuid,nodev,size=1g,mode=1777"}
SHARED_MEMORY = "1g"
"""For Chromium, which exchanges pictures of pages through it."""
FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException)
"""What the client raises: its own, and unwrapped what its HTTP library raises when an engine on TCP does not answer."""


def connect(timeout_s: int = 20) -> docker.DockerClient:
    """A client of the engine that the environment names, if it answers.

    Raises:
        ProvisionError: None answers.
    """
    try:
        client = docker.from_env(timeout=timeout_s)
        client.ping()
    except FAULTS as fault:
        raise ProvisionError(f"no container engine answers: {fault}") from fault
    return client


class ContainerServer:
    """An HTTP server in a container, removed when it ends."""

    def __init__(
        self,
        name: str,
        image: str,
        *,
        command: Sequence[str] | None = None,
        container_port: int = 8000,
        health_path: str = "/health",
        environment: Mapping[str, str] | None = None,
        volumes: Sequence[Path] = (),
        memory: str = "4g",
        start_deadline_s: float = 60.0,
    ) -> None:
        """
        Args:
            name: For people: part of the container's name.
            image: An image that the engine has.
            command: Instead of the image's own; its arguments, where the image has an entry point.
            container_port: Where the server listens inside.
            health_path: What answers below 400 once the server is ready.
            environment: Variables set inside.
            volumes: Files and folders of this machine that are seen inside under the same path, and cannot be written there.
            memory: It is ended when it takes more.
            start_deadline_s: Seconds in which it must be healthy.
        """
        self.name = name
        self._image = image
        self._command = list(command) if command else None
        self._inner_port = container_port
        self._health_path = health_path
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
        """The base URL, once started; it stays the same over restarts."""
        if self._port is None:
            raise ProvisionError(f"{self.name} has not been started")
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        """Starts the container, or another in its place on the same port, and returns when it is healthy.

        Raises:
            ProvisionError: The engine refused, or the server ended or was not healthy in time.
        """
        sweep(self._client)
        watch_over(owner_label())
        with self._lock:
            if self._ended:
                raise ProvisionError(f"{self.name} has been ended")
            self._remove()
            try:
                self._container = container = self._client.containers.run(  # type: ignore[call-overload]  # the stubs lack (host, None)
                    self._image,
                    self._command,
                    detach=True,
                    init=True,
                    name=f"{self.name}-{uuid.uuid4().hex[:8]}",
                    labels={LABEL: self.name, OWNER_LABEL: owner_label()},
                    environment=self._environment,
                    ports={f"{self._inner_port}/tcp": (HOST, self._port)},
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
                raise ProvisionError(f"{self.name}: the engine did not start {self._image}: {fault}") from fault
        deadline = time.monotonic() + self._start_deadline_s
        while True:
            port = self._published(container)
            if port is not None and answers(f"http://{HOST}:{port}{self._health_path}"):
                self._port = port
                return
            if not self.alive() or time.monotonic() > deadline:
                what = "was not healthy in time" if self.alive() else "ended during its start"
                tail = self.log_tail()
                self._remove()
                raise ProvisionError(f"{self.name} {what}; the end of its log:\n{tail}")
            time.sleep(0.1)

    def alive(self) -> bool:
        """Whether the container runs."""
        container = self._container
        if container is None:
            return False
        try:
            container.reload()
        except docker.errors.NotFound:
            return False
        except FAULTS as fault:
            raise ProvisionError(f"{self.name}: the engine does not answer: {fault}") from fault
        return bool(container.status in ("created", "running"))

    def end(self, grace_s: float = 1.0) -> None:
        """Ends and removes it for good; a start in another thread fails."""
        with self._lock:
            self._ended = True
            if self._container is not None:
                with contextlib.suppress(*FAULTS):
                    self._container.stop(timeout=max(1, round(grace_s)))
            self._remove()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that it wrote."""
        if self._container is not None:
            with contextlib.suppress(*FAULTS):
                self._last_log = self._container.logs(tail=lines).decode(errors="replace")
        return self._last_log

    def _published(self, container: Container) -> int | None:
        """The port on this machine; the engine tells it a moment after the start."""
        with contextlib.suppress(*FAULTS):
            container.reload()
            published = (container.ports or {}).get(f"{self._inner_port}/tcp")
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
    """Removes containers whose owner, a process of this machine, is gone; returns their names."""
    removed: list[str] = []
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}):
        boot, _, process = container.labels[OWNER_LABEL].partition("/")
        pid, _, started = process.partition("@")
        if boot == _boot() and pid.isdecimal() and str(started_at(int(pid))) != started:
            with contextlib.suppress(docker.errors.APIError):  # another sweep was faster
                container.remove(force=True, v=True)
                removed.append(container.name or "")
    return removed


def remove_owned(client: docker.DockerClient, owner: str) -> None:
    """Removes the containers with this owner's label, also those that are being started meanwhile."""
    for _ in range(REMOVALS):
        for container in client.containers.list(all=True, filters={"label": f"{OWNER_LABEL}={owner}"}):
            with contextlib.suppress(*FAULTS):
                container.remove(force=True, v=True)
        time.sleep(1.0)


def owner_label() -> str:
    """Names this process among all that this machine ran since its start."""
    pid = os.getpid()
    return f"{_boot()}/{pid}@{started_at(pid)}"


def _boot() -> str:
    """Names this machine since its start: process ids of others mean nothing here, and the engine may be shared."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
