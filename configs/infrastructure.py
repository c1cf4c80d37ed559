"""Where experiments run: folders, addresses, processes. Read from the environment, never from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class InfraSettings(BaseSettings):
    """Set any of these as an environment variable with the prefix AGENTGYM_, e.g. AGENTGYM_RUNS=/data/runs, or in a file `.env`."""

    model_config = SettingsConfigDict(
        env_prefix="AGENTGYM_", env_file=".env", env_file_encoding="utf-8", extra="ignore", use_attribute_docstrings=True, frozen=True
    )

    runs: Path = Path("runs")
    """Folder of everything that runs leave behind."""
    mlflow_tracking_uri: str | None = None
    """Address of an MLflow server. Empty: the one that `make up` started, else a sqlite file under `runs`."""
    environment_urls: Annotated[list[str], NoDecode] = []
    """Environment servers that are already up, comma-separated. Empty: servers are started for the run and ended after it."""
    environment_servers: PositiveInt = 1
    """How many environment servers a run starts."""
    environment_backend: Literal["process", "container"] = "process"
    """Start environment servers as local processes or as containers."""
    environment_image: str | None = None
    """Container image of the environment servers."""
    trainer_processes: PositiveInt | None = None
    """Processes of the trainer, one per GPU. Empty: two on a CPU with two cores or more, else one."""
    accelerate_config: Path | None = None
    """An accelerate configuration file (DeepSpeed, FSDP, several nodes); it then says how many processes there are."""
    engine_urls: Annotated[list[str], NoDecode] = []
    """vLLM servers that generate, comma-separated; tasks/policy/vllm_servers.py has their command. Empty: see engine_servers."""
    engine_servers: NonNegativeInt = 0
    """How many vLLM servers a run starts. 0: vLLM runs in the trainer's process."""
    engine_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.45
    """Share of a GPU's memory for vLLM; the trainer lives in the rest."""
    engine_cpu_cache_gb: PositiveInt = 1
    """KV cache of vLLM on a CPU, in GiB."""
    trainer_start_seconds: PositiveInt = 900
    """Longest start of the trainer: imports, loading of the model and start of the engine."""

    @field_validator("environment_urls", "engine_urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [url.strip() for url in value.split(",") if url.strip()] if isinstance(value, str) else value
