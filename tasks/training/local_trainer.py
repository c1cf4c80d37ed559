"""The trainer's processes on this machine: started through torchrun, called over a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tasks
from configs.infrastructure import InfraSettings, launch_of
from configs.launch import Launch
from tasks.provision.ipc import TrainerConnection, accept_trainer, listen
from tasks.provision.local import ON_LOOPBACK
from tasks.provision.process import ChildProcess
from tasks.training.messages import TrainerJob

VERDICT_SECONDS = 40.0
"""For the launcher to end the other processes, which it gives 30 s."""


class Line(Protocol):
    """What leads to the trainer's main process; see `TrainerConnection`."""

    def send(self, command: object) -> None: ...

    def receive(self, timeout: float) -> object | None: ...

    def close(self) -> None: ...


class Trainer(Protocol):
    """The trainer's processes, wherever they run: on this machine (LocalTrainer) or on nodes of a Ray cluster (RayTrainer)."""

    log_path: Path

    def start(self) -> None: ...

    def connect(self, seconds: float) -> Line: ...

    def wait(self, seconds: float) -> int | None: ...

    def killed(self) -> str | None: ...

    def lost(self) -> str | None: ...

    def end(self) -> None: ...

    def log_tail(self) -> str: ...


class LocalTrainer:
    """The trainer's processes on this machine, or its part of them where the others are started by hand on other machines."""

    def __init__(self, job: TrainerJob, infrastructure: InfraSettings) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        self._job, self._infrastructure = job, infrastructure
        self._listener: socket.socket | None = None
        self.log_path = job.folder / "trainer.log"
        job_file = job.folder / "trainer.json"
        self._process = ChildProcess(
            "trainer",
            launch_command(infrastructure, job_file, self._folder / "verdict"),
            environment={
                **trainer_variables(),
                "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(tasks.__file__).parent.parent), os.environ.get("PYTHONPATH")])),
                **(ON_LOOPBACK if trainer_launch(infrastructure).nodes == 1 else {}),
            },
            log_path=self.log_path,
        )

    def start(self) -> None:
        """Starts them; `connect` waits for the main process."""
        self._listener = listen(self._folder / "line")
        write_job(self._job, str(self._folder / "line"))
        self._process.start()

    def connect(self, seconds: float) -> TrainerConnection:
        """Waits for the main process to call; see `accept_trainer`."""
        assert self._listener is not None
        return accept_trainer(self._listener, seconds, self._process.alive)

    def wait(self, seconds: float) -> int | None:
        """Waits for the end and returns the exit status; None if they still run after so many seconds."""
        try:
            return self._process.wait(seconds)
        except TimeoutError:
            return None

    def killed(self) -> str | None:
        """Which process a signal ended, as the launcher says; None if none was."""
        status = self.wait(VERDICT_SECONDS)
        said = read_verdict(self._folder / "verdict")
        if said is None and status is not None and status > 128:
            return f"its launcher was killed by {signal.Signals(status - 128).name}"
        return said if said and "was killed" in said else None

    def lost(self) -> str | None:
        """Which machine was lost: none, as it is this one."""
        return None

    def end(self) -> None:
        """Ends what still runs."""
        if self._listener is not None:
            self._listener.close()
        self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_tail(self) -> str:
        """The last lines that they wrote."""
        return self._process.log_tail()


def write_job(job: TrainerJob, line: str) -> Path:
    """Puts down what the processes are to do, and the socket that the main process calls; returns the file."""
    file = job.folder / "trainer.json"
    file.write_text(job.model_copy(update={"socket": line}).model_dump_json(indent=1), encoding="utf-8")
    return file


def trainer_variables() -> dict[str, str]:
    """Variables of the trainer's processes."""
    # The engine steps small matrices on a CPU; the update sets its own number of threads.
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # else TRL imports MLflow, 3 s of a processor; the flow records, not the trainer
    }


def read_verdict(file: Path) -> str | None:
    """Which process failed, and how, as its launcher says; None where it says nothing."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def launch_command(
    infrastructure: InfraSettings, job_file: Path, verdict: Path, node: int = 0, meeting_point: tuple[str, int] | None = None
) -> list[str]:
    """The command that starts the trainer, or its part on one of several machines: through torchrun, or as forks where there is no GPU.

    Args:
        infrastructure: How many processes.
        job_file: What they are to do.
        verdict: Which process failed, and how, is in this file then.
        node: Which of the machines.
        meeting_point: Address and port of the first machine; by default those of the launch file.
    """
    launch = trainer_launch(infrastructure)
    processes = str(launch.processes or default_processes(infrastructure))
    if launch.nodes == 1 and meeting_point is None and not has_gpu():
        return [sys.executable, "-m", "tasks.training.forked_launch", str(verdict), processes, str(job_file.absolute())]
    address, port = meeting_point or (launch.first_node, launch.port)
    place: Sequence[str] = (
        ["--rdzv_backend", "memory", "--rdzv_endpoint", "127.0.0.1"]
        if launch.nodes == 1
        else ["--node_rank", str(node), "--master_addr", address, "--master_port", str(port)]
    )
    # Without --log_dir it leaves a folder for logs in the temporary one at every start; the processes write to the trainer's log.
    torchrun = ["--log_dir", os.devnull, "--nnodes", str(launch.nodes), "--nproc_per_node", processes, *place]
    module = ["-m", "tasks.training.trainer_main", str(job_file.absolute())]
    return [sys.executable, "-m", "tasks.training.launch", str(verdict), *torchrun, *module]


def trainer_launch(infrastructure: InfraSettings) -> Launch:
    """How the trainer's processes are spread, by the settings.

    Raises:
        LaunchError: The launch file is not there, or wrong.
    """
    launch = launch_of(infrastructure)
    processes = infrastructure.trainer_processes or launch.processes
    return launch.model_copy(update={"processes": processes})


def default_processes(infrastructure: InfraSettings) -> int:
    """Two on a CPU with two cores or more: each has an engine, and an engine for small matrices uses one core.

    One where there is a GPU, as which ones are free is for the user to say; one where vLLM servers generate, which need no second; and one
    on each node of a Ray cluster, whose nodes are not this machine.
    """
    elsewhere = infrastructure.engine_urls or infrastructure.engine_servers or infrastructure.ray_address
    return 1 if elsewhere or has_gpu() else min(2, len(os.sched_getaffinity(0)))


def has_gpu() -> bool:
    """Whether this machine has a GPU, without importing torch."""
    return Path("/dev/nvidia0").exists()
