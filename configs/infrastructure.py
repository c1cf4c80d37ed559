"""Where experiments run: folders, addresses and processes.

These settings come from environment variables, never from a recipe.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, DotEnvSettingsSource, NoDecode, SettingsConfigDict

from configs.config_model import ConfigError
from configs.launch import Launch, load_launch
from configs.plugins import nearest
from configs.recipe import explain

PREFIX = "AGENTGYM_"


class SettingsError(ConfigError):
    """An invalid environment variable."""


class InfraSettings(BaseSettings):
    """Settings of the machine or cluster.

    Set each as an environment variable with the prefix AGENTGYM_, e.g. AGENTGYM_RUNS=/data/runs, or
    in a file `.env`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        extra="ignore",
        use_attribute_docstrings=True,
        frozen=True,
    )

    runs: Path = Path("runs")
    """Output folder of all runs."""
    shared_storage: str | None = None
    """Folder or object store that outlives the machine, e.g. s3://bucket/runs.

    Checkpoints and trajectories are also kept there. A machine whose `runs` lacks the run fetches
    it. See docs/shared-storage.md. Empty: only `runs` is used.
    """
    mlflow_tracking_uri: str | None = None
    """Address of an MLflow server, or sqlite:/// and the path of a file.

    Empty: the server that `make up` started, otherwise a sqlite file under `runs`.
    """
    mlflow_page_url: str | None = None
    """Address of MLflow for people's browsers, used in links.

    Empty: `mlflow_tracking_uri`. Set it if MLflow has another address for browsers, e.g. in Compose.
    """
    viewer_page_url: str | None = None
    """Address of the viewer for people's browsers. Empty: where `make up` started it."""
    environment_urls: Annotated[list[str], NoDecode] = []
    """Running environment servers, comma-separated.

    Empty: a run starts its own servers and stops them at its end. For several environments prefix
    each address with its name: textcraft=http://a:8000,babyai=http://b:8000. A run of any other
    environment then starts its own servers.
    """
    environment_token: SecretStr | None = None
    """Secret that the servers of environment_urls require with every request.

    All servers share it. It is required if other machines can reach the servers. Empty: a run that
    starts its own servers generates one.
    """
    environment_servers: PositiveInt = 1
    """Number of environment servers that a run starts."""
    environment_backend: Literal["process", "container"] = "process"
    """Whether environment servers start as local processes or as containers."""
    environment_image: str | None = None
    """Container image of the environment servers.

    Empty: the image of the Dockerfile that has the environment's dependencies. `make images` builds
    it.
    """
    launch: str | None = None
    """Launch file: how the trainer is spread over GPUs and machines, and sharded (FSDP2).

    Give a file of configs/launch/ by name, or the path of another. Empty: one machine, no sharding.
    """
    ray_address: str | None = None
    """Address of a Ray cluster ("auto": the one of this machine).

    Its nodes run the vLLM servers and the environment servers of a run. See docs/several-nodes.md.
    Empty: they run on this machine.
    """
    trainer_processes: PositiveInt | None = None
    """Trainer processes on each machine, one per GPU.

    Empty: the value in `launch`. Without one it is one. On a CPU with two cores or more it is two
    for `policy.dtype: float32`, but one for each run of a study.
    """
    engine_urls: Annotated[list[str], NoDecode] = []
    """Running vLLM servers, comma-separated. Empty: see engine_servers.

    tasks/inference/launch_command.py has the command that starts one.
    """
    engine_token: SecretStr | None = None
    """Secret that the trainer sends to the vLLM servers of engine_urls with every request.

    Servers started by the command of tasks/inference/launch_command.py refuse all other requests.
    They need the same secret in their AGENTGYM_ENGINE_TOKEN. It is sent unencrypted, so use a
    private network between machines. Empty: a run that starts its own servers generates one.
    """
    engine_servers: NonNegativeInt = 0
    """Number of vLLM servers that a run starts. 0: vLLM runs in the trainer's process."""
    engine_gpus: Annotated[list[str], NoDecode] = []
    """GPUs of these servers, one for each, comma-separated as in CUDA_VISIBLE_DEVICES.

    Empty: the GPUs after those of the trainer. No GPU may be named twice or belong to the trainer.
    """
    engine_weights: Literal["folder", "nccl"] = "folder"
    """How vLLM servers receive new weights.

    "folder": through a folder in this machine's memory, or with `ray_address` in the run's folder.
    Servers of engine_urls on other machines cannot read this memory and need "nccl": over NCCL from
    the trainer's GPU. That GPU must not be one of theirs, and servers of engine_urls must be started
    with --weight-transfer-config '{"backend": "nccl"}'. LoRA adapters always go through the folder.
    """
    engine_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of a GPU's memory for vLLM, between 0 and 1.

    Empty: 0.45 beside a trainer process, 0.9 on a GPU that only vLLM uses.
    """
    engine_sleep: bool = False
    """Free the memory of vLLM in the trainer's process while the trainer updates.

    This uses vLLM's sleep mode, level 2, or level 1 with LoRA. A GPU then holds only one of the two
    at a time, apart from what stays in memory for both. Each step takes a few seconds longer, to
    sleep and to wake up.
    """
    engine_cpu_cache_gb: PositiveFloat | None = None
    """KV cache of vLLM on a CPU, in GiB.

    Empty: as much as all concurrent episodes need, at least 1 GiB and at most an eighth of the
    machine's memory. With less than they need, later turns compute the start of their context
    again.
    """
    study_runs_at_once: PositiveInt | None = None
    """Number of a study's runs in parallel.

    Empty: as many as have a GPU for each of their trainer processes and vLLM servers, as far as
    memory allows. On a CPU, as many as have a core for each trainer process, but one if a policy's
    dtype is not float32. With several nodes or `engine_urls` it is always one.
    """
    mlflow_parent_run: str | None = None
    """MLflow id of the parent run. A study sets it for its runs."""
    trainer_start_seconds: PositiveInt = 900
    """Longest start of the trainer in seconds: imports, model loading and engine start."""

    @field_validator("environment_urls", "engine_urls", "engine_gpus", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [word.strip() for word in value.split(",") if word.strip()]
        return value

    @field_validator("runs")
    @classmethod
    def _at_home(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("environment_urls", "engine_urls")
    @classmethod
    def _check_urls(cls, value: list[str]) -> list[str]:
        for url in value:
            if not _URL.fullmatch(url):
                raise ValueError(f"{url!r} is not a URL; write it like http://host:8000")
        return value

    @field_validator("ray_address", "shared_storage")
    @classmethod
    def _none_if_empty(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("mlflow_tracking_uri")
    @classmethod
    def _check_tracking_uri(cls, value: str | None) -> str | None:
        if value and not value.startswith(("sqlite:///", "http://", "https://")):
            raise ValueError(
                f"{value!r} is not an MLflow store; write it like http://host:5000 or "
                "sqlite:///path/to/file.db"
            )
        return value

    @field_validator("shared_storage")
    @classmethod
    def _check_shared_storage(cls, value: str | None) -> str | None:
        if value and "://" not in value and not value.startswith("/"):
            raise ValueError(
                "must be an absolute path or a URL, e.g. s3://bucket/runs, gs://bucket/runs or "
                "file:///mnt/runs"
            )
        return value

    @field_validator("launch")
    @classmethod
    def _check_launch_file(cls, value: str | None) -> str | None:
        if value:
            load_launch(value)
        return value or None

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        launch = launch_of(self)
        if launch.nodes == 1:
            return self
        if self.environment_backend == "container" and not self.environment_urls:
            raise ValueError(
                f"environment_backend is container, but launch {self.launch} has {launch.nodes} "
                "nodes, which cannot reach containers of the first; set process or environment_urls"
            )
        missing = [] if self.environment_token else ["environment_token"]
        if (self.engine_servers or self.engine_urls) and not self.engine_token:
            missing.append("engine_token")
        if missing:
            raise ValueError(
                f"launch {self.launch} has several nodes, which requires {' and '.join(missing)}; "
                "set the same on every node"
            )
        return self

    @model_validator(mode="after")
    def _check_ray(self) -> Self:
        if not self.ray_address:
            return self
        if find_spec("ray") is None:
            raise ValueError(
                f"ray_address is {self.ray_address}, but Ray is not installed; run pip install "
                "'agentgym-pipeline[ray]' on every node"
            )
        if not self.runs.is_absolute():
            raise ValueError(
                f"runs ({self.runs}) must be an absolute path if ray_address is set; give a folder "
                "that every node can access"
            )
        taken = {
            "engine_gpus": self.engine_gpus,
            "environment_backend": self.environment_backend == "container",
        }
        if named := [name for name, is_set in taken.items() if is_set]:
            raise ValueError(
                f"{' and '.join(named)} cannot be combined with ray_address, since Ray places the "
                "servers; unset one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine_gpus and len(self.engine_gpus) != self.engine_servers:
            raise ValueError(
                f"engine_gpus lists {len(self.engine_gpus)} GPUs for {self.engine_servers} "
                "engine_servers; list one GPU per server"
            )
        if self.engine_sleep and (self.engine_urls or self.engine_servers):
            if self.engine_servers:
                servers = f"engine_servers is {self.engine_servers}"
            else:
                servers = f"engine_urls is {','.join(self.engine_urls)}"
            raise ValueError(
                f"engine_sleep is true, but {servers}: only an engine in the trainer's process can "
                "sleep; unset one of the two"
            )
        return self


def local_engine_servers(settings: InfraSettings) -> int:
    """Return the number of vLLM servers that a run starts on this machine."""
    return 0 if settings.engine_urls or settings.ray_address else settings.engine_servers


def urls_of(settings: InfraSettings, world: str) -> tuple[str, ...]:
    """Return the running servers of an environment.

    An address without an environment's name applies to every environment.
    """
    pairs = [_NAMED.fullmatch(url) for url in settings.environment_urls]
    return tuple(
        pair.group(2) if pair else url
        for pair, url in zip(pairs, settings.environment_urls, strict=True)
        if pair is None or pair.group(1) == world
    )


def launch_of(settings: InfraSettings) -> Launch:
    """Return the configured launch file, or the default launch without one."""
    return load_launch(settings.launch) if settings.launch else Launch()


_NAMED = re.compile(r"([A-Za-z0-9._:+-]+)=(https?://.*)")
"""An address prefixed with its environment's name."""
_URL = re.compile(r"([A-Za-z0-9._:+-]+=)?https?://[^/]+.*")


def infra_settings() -> InfraSettings:
    """Read the settings of this process.

    Raises:
        SettingsError: A value is wrong, or a variable with the prefix AGENTGYM_ is not a setting.
    """
    known = {_variable(field) for field in InfraSettings.model_fields}
    in_file = DotEnvSettingsSource(InfraSettings).env_vars  # in lower case
    given = {*os.environ, *map(str.upper, in_file)}
    unknown = []
    for name in sorted(name for name in given if name.startswith(PREFIX) and name not in known):
        near = nearest(name, known)
        unknown.append(
            f"{name}: there is no such setting; "
            + (f"did you mean {near}?" if near else "unset it")
        )
    if unknown:
        raise SettingsError("\n".join(unknown))
    try:
        settings = InfraSettings()
        for name in ("environment_token", "engine_token"):
            token: SecretStr | None = getattr(settings, name)
            # It may come from the file `.env`, which child processes do not read.
            if token is not None:
                os.environ[_variable(name)] = token.get_secret_value()
        if settings.environment_urls:  # they determine which servers get the token
            os.environ[_variable("environment_urls")] = ",".join(settings.environment_urls)
        return settings
    except ValidationError as problem:
        raise SettingsError(
            f"these settings cannot be used:\n{explain(problem, 'the settings', _variable)}",
            problem,
        ) from None


def _variable(field: str) -> str:
    return PREFIX + field.upper()
