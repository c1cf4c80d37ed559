"""What the flow and the trainer process say to each other. No torch here: the flow imports it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from configs.experiment import Experiment
from configs.part import Part


class TrainerJob(Part):
    """What a trainer process is started with, as a JSON file."""

    experiment: Experiment
    """The recipe."""
    fingerprint: str
    """Names the experiment in its checkpoints."""
    policy: str
    """Hugging Face name or folder of the policy that training starts from."""
    folder: Path
    """The run's folder."""
    environment_urls: list[str]
    """Addresses of the environment servers."""
    environment_identity: str = ""
    """Name and version of the world that they host; empty: whatever they host."""
    success_score: float = 1.0
    """The score from which an episode is a success."""
    instruction: str | None
    """What the agent is told before its first observation."""
    train_tasks: list[int]
    """Task indices to learn from."""
    from_step: int | None = None
    """Step whose weights are loaded, 0 for the policy that training starts from; by default those of the newest whole checkpoint."""
    sharded: bool = False
    """Whether policy, reference and critic are divided among the processes (FSDP2)."""
    engine_memory_fraction: float
    """Share of a GPU's memory for the engine."""
    engine_sleep: bool = False
    """Whether the engine in the trainer's process frees its memory during the update."""
    engine_cpu_cache_gb: int
    """KV cache of the engine on a CPU, in GiB."""
    engine_urls: list[str] = Field(default_factory=list)
    """vLLM servers that generate; an engine in the trainer's process when empty."""
    engine_weights: Literal["folder", "nccl"] = "folder"
    """How these get new weights."""
    engine_weights_folder: Path | None = None
    """Where they are put for the servers to read; None: in this machine's memory."""
    socket: str
    """Unix socket on which the flow listens."""


@dataclass(frozen=True, slots=True)
class Train:
    """Command: train until so many steps are done or the phase ends, then checkpoint."""

    until: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Command: play each task `samples` times and write the trajectories to `path`."""

    tasks: tuple[int, ...]
    samples: int
    horizon: int
    temperature: float
    seed: int
    path: str


@dataclass(frozen=True, slots=True)
class Close:
    """Command: end."""


Command = Train | Evaluate | Close


@dataclass(frozen=True, slots=True)
class Ready:
    """Event: the policy and the engine are loaded and agree.

    Attributes:
        step: Training steps already done (from a checkpoint).
        batch_invariant: Whether this engine samples the same tokens whatever else is in flight, so that runs repeat bit for bit.
        parameters: Weights of the policy.
        seconds: What the start took, by part.
        notes: Things a person should know, e.g. a damaged checkpoint that was passed over.
    """

    step: int
    batch_invariant: bool
    parameters: int
    seconds: dict[str, float]
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
    folder: str
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Event: episodes of the current batch or evaluation that are finished."""

    finished: int
    all: int


@dataclass(frozen=True, slots=True)
class Trained:
    """Event: the last `Train` is done, after `step` steps."""

    step: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Event: the last `Evaluate` is done."""

    path: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: the trainer cannot go on."""

    kind: str
    message: str
    trace: str


Event = Ready | StepDone | Saved | Progress | Trained | Evaluated | Failed
