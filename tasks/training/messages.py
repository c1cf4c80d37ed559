"""Messages between the flow and the trainer process. Without torch, because the flow imports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from configs.config_model import ConfigModel
from configs.experiment import Experiment
from configs.launch import Sharding


class TrainerJob(ConfigModel):
    """The job of a trainer process, passed as a JSON file."""

    experiment: Experiment
    """The recipe."""
    policy: str
    """Hugging Face name or folder of the policy that training starts from."""
    folder: Path
    """The run's folder."""
    environment_urls: list[str]
    """Addresses of the environment servers."""
    environment_identity: str = ""
    """Expected name and version of the servers' world. Empty accepts any world."""
    success_score: float = 1.0
    """The score from which an episode is a success."""
    instruction: str | None
    """Instruction to the agent before its first observation."""
    tool_lists: list[list[dict[str, Any]]]
    """The tools of each world of a mixture, as `environments.tools.Tool`."""
    train_tasks: list[int]
    """Task indices to train on."""
    recorded_files: list[Path] = Field(default_factory=list)
    """Files of algorithm.trajectories to train on. Empty: all that it names."""
    from_step: int | None = None
    """Step whose weights are loaded; 0 is the policy that training starts from. Empty loads the
    newest complete checkpoint."""
    sharding: Sharding = "none"
    """How policy, reference and critic are sharded across ranks."""
    context_parallel: int = 1
    """Number of ranks that compute each packed row together."""
    engine_memory_fraction: float
    """Fraction of a GPU's memory for the engine, 0 to 1."""
    engine_sleep: bool = False
    """Whether the engine in the trainer's process frees its memory during the update."""
    engine_cpu_cache_gb: float | None
    """KV cache of the engine on a CPU, in GiB. None: see `cpu_cache_bytes`."""
    engine_urls: list[str] = Field(default_factory=list)
    """Addresses of the vLLM servers that generate. Empty means an engine in the trainer's process.
    """
    engine_weights: Literal["folder", "nccl"] = "folder"
    """How the vLLM servers get new weights."""
    engine_weights_folder: Path | None = None
    """Folder through which the servers get new weights. None means this machine's memory."""
    socket: str
    """Unix socket on which the flow listens."""


@dataclass(frozen=True, slots=True)
class Train:
    """Command: train until `until` steps are done or the phase ends, then save a checkpoint."""

    until: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Command: run `samples` episodes of each task and write the trajectories to `path`."""

    tasks: tuple[int, ...]
    samples: int
    horizon: int
    temperature: float
    seed: int
    path: str


@dataclass(frozen=True, slots=True)
class Close:
    """Command: exit."""


Command = Train | Evaluate | Close


@dataclass(frozen=True, slots=True)
class Ready:
    """Event: policy and engine are loaded and their weights match.

    Attributes:
        step: Number of training steps already done (from a checkpoint).
        notes: Messages for the user, e.g. about a damaged checkpoint that was skipped.
    """

    step: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepDone:
    """Event: a training step (counted from 1) is done."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Saved:
    """Event: the checkpoint of `step` is published."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Event: number of finished episodes in the current batch or evaluation."""

    finished: int
    all: int


@dataclass(frozen=True, slots=True)
class Trained:
    """Event: the last `Train` is done, after `step` steps."""

    step: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Event: the last `Evaluate` is done."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: the trainer failed and exits."""

    kind: str
    message: str


Event = Ready | StepDone | Saved | Progress | Trained | Evaluated | Failed
