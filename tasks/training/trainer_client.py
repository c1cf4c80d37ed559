"""The trainer as the flow sees it: a process that is started, told what to do, listened to, and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import tasks
from configs.infrastructure import InfraSettings
from configs.launch import Launch, load_launch
from tasks.provision.ipc import ConnectionClosedError, TrainerConnection, accept_trainer, listen
from tasks.provision.process import ChildProcess
from tasks.training.messages import Close, Command, Evaluate, Evaluated, Event, Failed, Ready, StepDone, Train, Trained, TrainerJob

E = TypeVar("E", bound=Event)

CLOSE_SECONDS = 20.0
VERDICT_SECONDS = 40.0
"""For the launcher to end the other processes, which it gives 30 s."""
POLL_SECONDS = 0.5
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Keeps what the processes of one machine say to each other off its network."""


class TrainerFailedError(RuntimeError):
    """The trainer reported a fault or ended; the message says which, and where its log is."""


class TrainerProcess:
    """Starts the trainer for a `with` block; it is gone afterwards, whatever happened.

    Attributes:
        step: Training steps that went into its present weights, as it last said.
    """

    def __init__(self, job: TrainerJob, infrastructure: InfraSettings, check: Callable[[], None]) -> None:
        """
        Args:
            job: What to train; its socket is filled in here.
            infrastructure: How many processes, and how they are started.
            check: Called twice a second while waiting; raises when something else that the run needs is gone for good.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._job = job.model_copy(update={"socket": str(self._folder / "line")})
        self._infrastructure = infrastructure
        self._check = check
        self.step = 0
        self._process: ChildProcess | None = None
        self._listener: socket.socket | None = None
        self._line: TrainerConnection | None = None

    def __enter__(self) -> Self:
        """Starts the process; `ready` waits for it."""
        self._listener = listen(self._folder / "line")
        job_file = self._job.folder / "trainer.json"
        job_file.write_text(self._job.model_dump_json(indent=1), encoding="utf-8")
        root = str(Path(tasks.__file__).parent.parent)
        self._process = ChildProcess(
            "trainer",
            launch_command(self._infrastructure, job_file, self._folder / "verdict"),
            environment={
                "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
                # The engine steps small matrices on a CPU; the update sets its own number of threads.
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                "TOKENIZERS_PARALLELISM": "false",
                **(ON_LOOPBACK if trainer_launch(self._infrastructure).nodes == 1 else {}),
            },
            log_path=self._job.folder / "trainer.log",
        )
        self._process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        if self._line is not None:
            self._line.close()
        if self._listener is not None:
            self._listener.close()
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ready(self) -> Ready:
        """Waits until policy and engine are loaded.

        Raises:
            TrainerFailedError: That did not come to pass.
        """
        assert self._listener is not None
        assert self._process is not None
        try:
            self._line = accept_trainer(self._listener, self._infrastructure.trainer_start_seconds, self._process.alive)
        except ConnectionClosedError as problem:
            raise self._failure(str(problem)) from None
        for event in self._events():
            if isinstance(event, Ready):
                self.step = event.step
                return event
        raise AssertionError("unreachable")

    def train(self, until: int) -> Iterator[Event]:
        """Trains until `until` steps are done or the phase ends, and yields what the trainer reports; the last event is `Trained`."""
        return self._do(Train(until), Trained)

    def evaluate(self, command: Evaluate) -> Iterator[Event]:
        """Evaluates and yields what the trainer reports; the last event is `Evaluated`."""
        return self._do(command, Evaluated)

    def _do(self, command: Command, last: type[Event]) -> Iterator[Event]:
        assert self._line is not None, "wait for ready() first"
        try:
            self._line.send(command)
        except ConnectionClosedError as problem:
            raise self._failure(str(problem)) from None
        for event in self._events():
            if isinstance(event, StepDone | Trained):
                self.step = event.step
            yield event
            if isinstance(event, last):
                return

    def _events(self) -> Iterator[Event]:
        assert self._line is not None
        assert self._process is not None
        while True:
            try:
                event = self._line.receive(POLL_SECONDS)
            except ConnectionClosedError:
                raise self._ended() from None
            if event is None:
                self._check()
            elif isinstance(event, Failed):
                killed = self._killed()  # what this process missed may be one that was killed
                raise self._failure(killed or f"{event.kind}: {event.message}", tail=False)
            else:
                assert isinstance(event, Event)
                yield event

    def close(self) -> None:
        """Lets the trainer end by itself, so that the engine frees what it holds."""
        try:
            if self._line is not None and self._process is not None:
                self._line.send(Close())
                self._process.wait(CLOSE_SECONDS)
        except (ConnectionClosedError, TimeoutError):
            pass  # it is ended the hard way

    def _ended(self) -> TrainerFailedError:
        """The process hung up without a word."""
        assert self._process is not None
        killed = self._killed()
        return self._failure(killed or f"it ended with status {self._process.exit_status}", tail=killed is None)

    def _killed(self) -> str | None:
        """Which process of the trainer a signal ended, as its launcher says; None if none was."""
        assert self._process is not None
        try:
            status = self._process.wait(VERDICT_SECONDS)
        except TimeoutError:
            return None
        try:
            said = (self._folder / "verdict").read_text(encoding="utf-8")
        except FileNotFoundError:
            return f"its launcher was killed by {signal.Signals(status - 128).name}" if status > 128 else None
        return said if "was killed" in said else None

    def _failure(self, what: str, tail: bool = True) -> TrainerFailedError:
        assert self._process is not None
        message = f"the trainer failed: {what}. Its log: {self._process.log_path}"
        return TrainerFailedError(f"{message}; the end of it:\n{self._process.log_tail()}" if tail else message)


def launch_command(infrastructure: InfraSettings, job_file: Path, verdict: Path) -> list[str]:
    """The command that starts the trainer, or its part on the first of several machines, through torchrun.

    Which process failed, and how, is then in the file `verdict`.
    """
    launch = trainer_launch(infrastructure)
    processes = str(launch.processes or default_processes(infrastructure))
    place = (
        ["--rdzv_backend", "loopback", "--rdzv_endpoint", "127.0.0.1"]
        if launch.nodes == 1
        else ["--node_rank", "0", "--master_addr", launch.first_node, "--master_port", str(launch.port)]
    )
    torchrun = ["--nnodes", str(launch.nodes), "--nproc_per_node", processes, *place]
    module = ["-m", "tasks.training.trainer_main", str(job_file.absolute())]
    return [sys.executable, "-m", "tasks.training.launch", str(verdict), *torchrun, *module]


def trainer_launch(infrastructure: InfraSettings) -> Launch:
    """How the trainer's processes are spread, by the settings.

    Raises:
        LaunchError: The launch file is not there, or wrong.
    """
    launch = load_launch(infrastructure.launch) if infrastructure.launch else Launch()
    processes = infrastructure.trainer_processes or launch.processes
    return launch.model_copy(update={"processes": processes})


def default_processes(infrastructure: InfraSettings) -> int:
    """Two on a CPU with two cores or more: each has an engine, and an engine for small matrices uses one core.

    One where there is a GPU, as which ones are free is for the user to say; and one where vLLM servers generate, which need no second.
    """
    servers = infrastructure.engine_urls or infrastructure.engine_servers
    return 1 if servers or Path("/dev/nvidia0").exists() else min(2, len(os.sched_getaffinity(0)))
