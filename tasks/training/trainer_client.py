"""The flow's client of the trainer: starts the processes, sends commands, receives events.

The processes connect to the flow over a Unix socket. With several nodes, this machine is the first
of them. The others run `trainer_node.py`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from configs.infrastructure import InfraSettings
from tasks.provision.ipc import ConnectionClosedError, TrainerConnection, accept_trainer, listen
from tasks.provision.local import ON_LOOPBACK
from tasks.provision.process import ChildProcess, importing, sweep
from tasks.training.launch import POLICY_READY, RESTARTS_AFTER
from tasks.training.left_out import EpisodesLeftOutError
from tasks.training.local_trainer import (
    launch_command,
    memory_variables,
    nodes_job,
    trainer_launch,
    trainer_variables,
)
from tasks.training.messages import (
    Close,
    Command,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Ready,
    StepDone,
    Train,
    Trained,
    TrainerJob,
)
from tasks.training.rank_errors import PEER_ERRORS, clear_error, noted_error

VERDICT_SECONDS = 40.0
"""Time for the launcher to stop the other processes. The launcher's own limit is 30 s."""
CLOSE_SECONDS = 20.0
POLL_SECONDS = 0.5


class TrainerFailedError(RuntimeError):
    """The trainer reported an error or exited.

    The message contains the reason and the path of the log.
    """


class TrainerLostError(TrainerFailedError):
    """A process or node of a trainer on several nodes was lost, or a rank hung.

    Training can resume from the last checkpoint, on other nodes if one was lost.
    """


class TrainerProcess:
    """A context manager that starts the trainer and always stops it on exit.

    Attributes:
        step: Number of training steps in the current weights, as last reported by the trainer.
    """

    def __init__(
        self, job: TrainerJob, infrastructure: InfraSettings, check: Callable[[], None]
    ) -> None:
        """
        Args:
            job: The training job. `socket` is set when the processes start.
            infrastructure: Number and location of the processes.
            check: Called twice a second while waiting. Raises if another part of the run has failed
                permanently.
        """
        self._job, self._infrastructure, self._check = job, infrastructure, check
        self._has_peers = trainer_launch(infrastructure).nodes > 1
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._job_file = job.folder / "trainer.json"
        self._verdict_file = self._folder / "verdict"
        dtype = job.experiment.policy.dtype
        self._process = ChildProcess(
            "trainer",
            launch_command(infrastructure, dtype, self._job_file, self._verdict_file),
            environment=importing(
                {
                    **trainer_variables(),
                    **memory_variables(dtype),
                    **({} if self._has_peers else _on_loopback(job)),
                }
            ),
            log_path=job.folder / "trainer.log",
        )
        self.step = 0
        self._listener: socket.socket | None = None
        self._connection: TrainerConnection | None = None

    def __enter__(self) -> Self:
        """Start the processes. `ready` waits for them.

        The policy must exist now, or before `ready` if the trainer `starts_forks`.
        """
        try:
            self._listener = listen(self._folder / "line")
            job = self._job.model_copy(update={"socket": str(self._folder / "line")})
            self._job_file.write_text(job.model_dump_json(indent=1), encoding="utf-8")
            if self._has_peers:
                link = nodes_job(self._infrastructure)
                link.unlink(missing_ok=True)
                link.symlink_to(self._job_file.absolute())
            clear_error(self._job.folder)
            # A killed flow of this run used the same log. If it were swept later, this trainer would
            # be killed with it.
            sweep()
            self._process.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for line in (self._connection, self._listener):
            if line is not None:
                line.close()
        self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ready(self) -> Ready:
        """Let the processes load the policy, and wait until policy and engine are loaded.

        Raises:
            TrainerFailedError: The trainer failed or did not connect in time.
        """
        assert self._listener is not None
        (self._folder / POLICY_READY).touch()
        try:
            self._connection = accept_trainer(
                self._listener, self._infrastructure.trainer_start_seconds, self._process.alive
            )
        except ConnectionClosedError as problem:
            raise self._failure(str(problem)) from None
        for event in self._events():
            if isinstance(event, Ready):
                self.step = event.step
                return event
        raise AssertionError("unreachable")

    def train(self, until: int) -> Iterator[Event]:
        """Train until `until` steps are done or the phase ends, and yield the trainer's events.

        The last event is `Trained`.
        """
        return self._run_command(Train(until), Trained)

    def evaluate(self, command: Evaluate) -> Iterator[Event]:
        """Evaluate and yield the trainer's events. The last event is `Evaluated`."""
        return self._run_command(command, Evaluated)

    def _run_command(self, command: Command, last: type[Event]) -> Iterator[Event]:
        assert self._connection is not None, "call ready() first"
        try:
            self._connection.send(command)
        except ConnectionClosedError:
            raise self._ended() from None
        for event in self._events():
            if isinstance(event, StepDone | Trained):
                self.step = event.step
            yield event
            if isinstance(event, last):
                return

    def _events(self) -> Iterator[Event]:
        assert self._connection is not None
        while True:
            try:
                event = self._connection.receive(POLL_SECONDS)
            except ConnectionClosedError:
                raise self._ended() from None
            if event is None:
                self._check()
            elif isinstance(event, Failed):
                if event.kind == EpisodesLeftOutError.__name__:
                    raise EpisodesLeftOutError(event.message)
                # It may result from a killed process, or from another rank's error.
                killed = self._killed()
                cause = noted_error(self._job.folder) if event.kind in PEER_ERRORS else ""
                problem = killed or cause or f"{event.kind}: {event.message}"
                lost = self._has_peers and event.kind in PEER_ERRORS
                raise self._failure(problem, tail=False, lost=lost)
            else:
                assert isinstance(event, Event)
                yield event

    def close(self) -> None:
        """Ask the trainer to exit, so that the engine frees its resources."""
        try:
            if self._connection is not None:
                self._connection.send(Close())
                self._wait(CLOSE_SECONDS)
        except ConnectionClosedError:
            pass  # `__exit__` kills the process

    def _wait(self, seconds: float) -> int | None:
        """Return the launcher's exit status. None if it still runs after `seconds`."""
        try:
            return self._process.wait(seconds)
        except TimeoutError:
            return None

    def _verdict(self) -> str:
        """Return the launcher's report of the failed process. Empty if there is none."""
        try:
            return self._verdict_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _killed(self) -> str | None:
        """Describe the process that a signal killed. None if there is none."""
        status, verdict = self._wait(VERDICT_SECONDS), self._verdict()
        if not verdict and status is not None and status > 128:
            return f"its launcher was killed by {signal.Signals(status - 128).name}"
        return verdict if "was killed" in verdict else None

    def _ended(self) -> TrainerFailedError:
        """Return the error for a connection that closed without an error message."""
        killed = self._killed()
        return self._failure(
            killed or noted_error(self._job.folder) or f"it exited with status {self._wait(0.0)}",
            tail=killed is None,
            lost=self._has_peers,
        )

    def _failure(self, problem: str, tail: bool = True, lost: bool = False) -> TrainerFailedError:
        message = f"the trainer failed: {problem.rstrip('.')}. See {self._process.log_path}"
        verdict = self._verdict()
        lost = lost or any(words in verdict for words in RESTARTS_AFTER)
        # A restart would not help against an error that a rank noted.
        restarts = lost and not noted_error(self._job.folder)
        kind = TrainerLostError if restarts else TrainerFailedError
        return kind(
            f"{message}. Last lines of the log:\n{self._process.log_tail()}" if tail else message
        )


def _on_loopback(job: TrainerJob) -> dict[str, str]:
    """Return the variables that keep the connections of the ranks off the network.

    NCCL must use it if it sends the weights to servers on other machines. Addresses in files belong
    to servers that may move there.
    """
    hosts = {urlsplit(url).hostname for url in job.engine_urls or ()}
    if job.engine_weights == "nccl" and not hosts <= {"127.0.0.1", "localhost"}:
        return {name: value for name, value in ON_LOOPBACK.items() if not name.startswith("NCCL")}
    return ON_LOOPBACK
