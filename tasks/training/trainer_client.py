"""The flow's client of the trainer: starts the processes, sends commands, receives events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from configs.infrastructure import InfraSettings
from tasks.provision.ipc import ConnectionClosedError, TrainerConnection
from tasks.training.left_out import EpisodesLeftOutError
from tasks.training.local_trainer import LocalTrainer, trainer_launch
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

PEER_ERRORS = {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError"}
"""Errors of torch on rank 0 after it lost the connection to another node."""
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
        self._trainer = LocalTrainer(job, infrastructure)
        self._infrastructure = infrastructure
        self._has_peers = trainer_launch(infrastructure).nodes > 1
        self._check = check
        self.step = 0
        self._connection: TrainerConnection | None = None

    def __enter__(self) -> Self:
        """Start the process. `ready` waits for it.

        The policy must exist now, or before `ready` if the trainer `starts_forks`.
        """
        try:
            self._trainer.start()
        except BaseException:
            self._trainer.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._trainer.end()

    def ready(self) -> Ready:
        """Wait until policy and engine are loaded.

        Raises:
            TrainerFailedError: The trainer failed or did not connect in time.
        """
        try:
            self._connection = self._trainer.connect(self._infrastructure.trainer_start_seconds)
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
                killed = self._trainer.killed()  # the error may result from a killed process
                problem = killed or f"{event.kind}: {event.message}"
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
                self._trainer.wait(CLOSE_SECONDS)
        except ConnectionClosedError:
            pass  # `__exit__` kills the process

    def _ended(self) -> TrainerFailedError:
        """Return the error for a connection that closed without an error message."""
        killed = self._trainer.killed()
        return self._failure(
            killed or f"it exited with status {self._trainer.wait(0.0)}",
            tail=killed is None,
            lost=self._has_peers,
        )

    def _failure(self, problem: str, tail: bool = True, lost: bool = False) -> TrainerFailedError:
        message = f"the trainer failed: {problem.rstrip('.')}. See {self._trainer.log_path}"
        kind = TrainerLostError if lost or self._trainer.lost() else TrainerFailedError
        return kind(
            f"{message}. Last lines of the log:\n{self._trainer.log_tail()}" if tail else message
        )
