"""How the trainer's processes are spread over GPUs and nodes.

AGENTGYM_LAUNCH names a file of this folder, or the path of another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError, model_validator

from configs.config_model import ConfigError, ConfigModel
from configs.files import find_yaml, read_yaml
from configs.recipe import explain

FOLDER = Path(__file__).parent


class LaunchError(ConfigError):
    """An invalid launch file."""


class Needs(ConfigModel):
    """Resources that Ray reserves for a server on its node."""

    gpus: NonNegativeInt | None = None
    """GPUs. The model of a vLLM server is split over its GPUs (tensor parallel).

    Empty: one if the cluster has any. Default for an environment server: none.
    """
    cpus: NonNegativeFloat = 1
    """CPU cores."""
    memory_gb: NonNegativeFloat = 0
    """Memory in GiB. 0: memory is not reserved."""


Sharding = Literal["none", "fsdp2", "hsdp"]


class Launch(ConfigModel):
    """Where the trainer's processes run, and how the weights are sharded."""

    nodes: PositiveInt = 1
    """Machines. The flow runs on the first one. See docs/several-nodes.md for the others."""
    processes: PositiveInt | None = None
    """Processes per machine, one per GPU. AGENTGYM_TRAINER_PROCESSES takes precedence.

    Empty: one. On a CPU with two cores or more it is two for `policy.dtype: float32`.
    """
    sharding: Sharding = "none"
    """How model state is distributed.

    "none": every process holds all weights, gradients and optimiser state. "fsdp2": all processes
    share them, including those of the reference and the critic. "hsdp": the processes of each
    machine share them, and machines exchange only gradients.
    """
    context_parallel: PositiveInt = 1
    """Ranks that compute each row of the update together, so that a rank holds the activations of
    a part of its tokens only. It must divide the number of ranks and the policy's heads, and
    needs `processes`.
    """
    first_node: str = "127.0.0.1"
    """Address of the first machine, as seen from the others."""
    port: PositiveInt | None = None
    """Rendezvous port on the first machine. Required with several nodes."""
    engine: Needs = Needs()
    """Resources that Ray reserves for each vLLM server (AGENTGYM_RAY_ADDRESS)."""
    environment: Needs = Needs(gpus=0)
    """Resources that Ray reserves for each environment server (AGENTGYM_RAY_ADDRESS)."""

    @property
    def ranks(self) -> int:
        """Number of trainer processes on all machines, if `processes` is given."""
        return self.nodes * (self.processes or 1)

    @model_validator(mode="after")
    def _check_rendezvous(self) -> Self:
        if self.nodes > 1 and (self.port is None or self.first_node in ("127.0.0.1", "localhost")):
            raise ValueError(
                f"nodes ({self.nodes}) requires first_node ({self.first_node}), an address that "
                f"every node can reach, and port ({self.port}); set both"
            )
        return self

    @model_validator(mode="after")
    def _check_context_parallel(self) -> Self:
        if self.context_parallel > 1 and self.processes is None:
            raise ValueError(
                f"context_parallel ({self.context_parallel}) requires processes; set it to the "
                "number of GPUs"
            )
        return self


def load_launch(name: str) -> Launch:
    """Read a launch file, given as a path or by its name in configs/launch/.

    Raises:
        LaunchError: The file does not exist, or a field is wrong.
    """
    path = find_yaml(name, FOLDER, "launch file", LaunchError)
    try:
        return Launch.model_validate(read_yaml(path, LaunchError))
    except ValidationError as problem:
        raise LaunchError(
            f"{path} is not a valid launch file:\n{explain(problem, 'the file')}", problem
        ) from None
