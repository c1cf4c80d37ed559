"""How the trainer's processes are spread over GPUs and nodes: a file of this folder, or one of your own, named by AGENTGYM_LAUNCH."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError, model_validator

from configs.part import Part
from configs.recipe import explain

FOLDER = Path(__file__).parent


class LaunchError(ValueError):
    """A launch file that cannot be used: the message names each wrong field, its value and what would be right."""


class Needs(Part):
    """What Ray sets aside for a process on the node where it puts it."""

    gpus: NonNegativeInt | None = None
    """GPUs; the model of a vLLM server is divided over its own (tensor parallel). Empty: one where the cluster has any; none for an
    environment server."""
    cpus: NonNegativeFloat = 1
    """Cores."""
    memory_gb: NonNegativeFloat = 0
    """Memory, in GiB. 0: it is not counted."""


RAY = "ray"
"""The first node's address where Ray says it."""


class Launch(Part):
    """Where the trainer's processes run, and what each of them holds."""

    nodes: PositiveInt = 1
    """Machines. The flow runs on the first; the README says what is started on the others."""
    processes: PositiveInt | None = None
    """Processes on each machine, one per GPU. Empty: one on a GPU, two on a CPU with two cores or more. AGENTGYM_TRAINER_PROCESSES goes
    before it."""
    sharding: Literal["none", "fsdp2"] = "none"
    """"none": every process holds all weights, gradients and optimiser state. "fsdp2": they are divided among all processes, those of the
    reference and the critic too."""
    first_node: str = "127.0.0.1"
    """Address of the first machine as the others see it; "ray": Ray says it, and the port (AGENTGYM_RAY_ADDRESS)."""
    port: PositiveInt | None = None
    """Port of the first machine on which the processes find each other; needed with several nodes."""
    trainer: Needs = Needs()
    """What Ray sets aside for each process of the trainer."""
    engine: Needs = Needs()
    """What Ray sets aside for each vLLM server."""
    environment: Needs = Needs(gpus=0)
    """What Ray sets aside for each environment server."""

    @model_validator(mode="after")
    def _can_meet(self) -> Self:
        if self.nodes > 1 and self.first_node != RAY and (self.port is None or self.first_node in ("127.0.0.1", "localhost")):
            raise ValueError(
                f"{self.nodes} nodes need first_node, an address that all of them reach (now {self.first_node}), and port (now {self.port})"
            )
        return self


def launch_names() -> list[str]:
    """Names of the launch files that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_launch(name: str) -> Launch:
    """Reads a launch file, given as a path or by its name in configs/launch/.

    Raises:
        LaunchError: There is no such file, or a field is wrong.
    """
    path = next((path for path in (Path(name), FOLDER / f"{name}.yaml") if path.is_file()), None)
    if path is None:
        close = difflib.get_close_matches(name, launch_names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise LaunchError(f"no launch file {name!r}: it is neither a file nor one of {', '.join(launch_names())}.{hint}")
    try:
        return Launch.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except yaml.YAMLError as problem:
        raise LaunchError(f"{path} is not YAML: {problem}") from problem
    except ValidationError as problem:
        raise LaunchError(f"{path} is not a valid launch file:\n{explain(problem, 'the file')}") from None
