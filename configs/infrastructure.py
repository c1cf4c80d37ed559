"""Where experiments run: folders, addresses, processes. Read from the environment, never from a recipe."""

from __future__ import annotations

import difflib
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from configs.launch import RAY, Launch, load_launch
from configs.recipe import explain
from configs.renamed_fields import RENAMED_SETTINGS

PREFIX = "AGENTGYM_"


class SettingsError(ValueError):
    """A setting that cannot be used: the message names each variable, its value and what would be right."""


class InfraSettings(BaseSettings):
    """Set any of these as an environment variable with the prefix AGENTGYM_, e.g. AGENTGYM_RUNS=/data/runs, or in a file `.env`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_file_encoding="utf-8", extra="ignore", use_attribute_docstrings=True, frozen=True
    )

    runs: Path = Path("runs")
    """Folder of everything that runs leave behind."""
    shared_storage: str | None = None
    """Folder or object store that outlives the machine, e.g. s3://bucket/runs: checkpoints and trajectories are kept there too, and a
    machine whose `runs` lacks the run fetches it; docs/shared-storage.md. Empty: `runs` alone."""
    mlflow_tracking_uri: str | None = None
    """Address of an MLflow server. Empty: the one that `make up` started, else a sqlite file under `runs`."""
    mlflow_page_url: str | None = None
    """Where people's browsers find MLflow, for links to it. Empty: at `mlflow_tracking_uri`, which is another for containers."""
    viewer_page_url: str | None = None
    """Where people's browsers find the viewer. Empty: where `make up` started it."""
    environment_urls: Annotated[list[str], NoDecode] = []
    """Environment servers that are already up, comma-separated. Empty: servers are started for the run and ended after it. Where there are
    servers of several worlds, each with its world: textcraft=http://a:8000,babyai=http://b:8000; other worlds' servers are started."""
    environment_token: SecretStr | None = None
    """Secret that the servers of environment_urls need with every request; one wherever other machines can reach them, the same for all.
    Empty: a run that starts its own servers draws one."""
    environment_servers: PositiveInt = 1
    """How many environment servers a run starts."""
    environment_backend: Literal["process", "container"] = "process"
    """Start environment servers as local processes or as containers."""
    environment_image: str | None = None
    """Container image of the environment servers. Empty: the image of the Dockerfile that has what the world needs; `make images`."""
    launch: str | None = None
    """How the trainer's processes are spread over GPUs and machines, and whether its weights are sharded (FSDP2): a file of
    configs/launch/ by name, or the path of another. Empty: one machine, nothing sharded."""
    ray_address: str | None = None
    """Address of a Ray cluster ("auto": the one of this machine), whose nodes then run the trainer, the vLLM servers and the environment
    servers; docs/several-nodes.md. Empty: all of them run on this machine."""
    trainer_processes: PositiveInt | None = None
    """Processes of the trainer on each machine, one per GPU. Empty: what `launch` says; else two on a CPU with two cores or more, one on a
    GPU."""
    engine_urls: Annotated[list[str], NoDecode] = []
    """vLLM servers that generate, comma-separated; tasks/inference/launch_command.py has their command. Empty: see engine_servers."""
    engine_token: SecretStr | None = None
    """Secret that the trainer sends to the vLLM servers of engine_urls with every request. Servers started by the command of
    tasks/inference/launch_command.py refuse all other requests and need the same secret in their AGENTGYM_ENGINE_TOKEN. It is not
    encrypted on the way: between machines use a private network. Empty: a run that starts its own servers draws one."""
    engine_servers: NonNegativeInt = 0
    """How many vLLM servers a run starts. 0: vLLM runs in the trainer's process."""
    engine_gpus: Annotated[list[str], NoDecode] = []
    """The GPUs of these servers, one for each, comma-separated as in CUDA_VISIBLE_DEVICES. Empty: all use the first."""
    engine_weights: Literal["folder", "nccl"] = "folder"
    """How vLLM servers get new weights: through a folder that they can read, or over NCCL from the trainer's GPU, which then must not be
    one of theirs; servers of engine_urls are started with --weight-transfer-config '{"backend": "nccl"}'."""
    engine_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.45
    """Share of a GPU's memory for vLLM; the trainer lives in the rest."""
    engine_sleep: bool = False
    """vLLM in the trainer's process frees its memory while the trainer updates (vLLM's sleep mode, level 2): a GPU then holds one of the
    two at a time, beside what stays in both, and a step takes longer by the seconds of falling asleep and waking up."""
    engine_cpu_cache_gb: PositiveInt = 1
    """KV cache of vLLM on a CPU, in GiB."""
    study_runs_at_once: PositiveInt | None = None
    """Runs of a study that go on side by side. Empty: one for each GPU, or for each core, as far as the memory reaches."""
    mlflow_parent_run: str | None = None
    """MLflow's id of the run that this one is shown below; a study sets it for its runs."""
    trainer_start_seconds: PositiveInt = 900
    """Longest start of the trainer: imports, loading of the model and start of the engine."""

    @field_validator("environment_urls", "engine_urls", "engine_gpus", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value

    @field_validator("ray_address", "shared_storage")
    @classmethod
    def _none_if_empty(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("shared_storage")
    @classmethod
    def _url_or_whole_path(cls, value: str | None) -> str | None:
        if value and "://" not in value and not value.startswith("/"):
            raise ValueError("give the absolute path of a folder, or a URL, e.g. s3://bucket/runs, gs://bucket/runs or file:///mnt/runs")
        return value

    @field_validator("launch")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value:
            load_launch(value)
        return value or None

    @model_validator(mode="after")
    def _somebody_says_the_first_node(self) -> Self:
        if self.launch and not self.ray_address and load_launch(self.launch).first_node == RAY:
            raise ValueError(f"launch is {self.launch}, whose first_node Ray says, but ray_address is empty; set it, or launch to another")
        return self

    @model_validator(mode="after")
    def _ray_is_installed(self) -> Self:
        if self.ray_address and find_spec("ray") is None:
            raise ValueError("ray_address is set, but Ray is not installed: pip install 'agentgym-pipeline[ray]', on every node")
        return self

    @model_validator(mode="after")
    def _nodes_find_the_runs(self) -> Self:
        if self.ray_address and not self.runs.is_absolute():
            raise ValueError(f"runs is {self.runs}; beside ray_address it must be the absolute path of a folder that every node sees")
        return self

    @model_validator(mode="after")
    def _ray_places_alone(self) -> Self:
        taken = {"engine_gpus": self.engine_gpus, "environment_backend": self.environment_backend == "container"}
        if self.ray_address and (named := [name for name, is_set in taken.items() if is_set]):
            raise ValueError(f"{' and '.join(named)} cannot be set beside ray_address: Ray places the processes; unset one of them")
        return self

    @model_validator(mode="after")
    def _one_gpu_for_each_server(self) -> Self:
        if self.engine_gpus and len(self.engine_gpus) != self.engine_servers:
            raise ValueError(f"engine_gpus names {len(self.engine_gpus)} GPUs for {self.engine_servers} engine_servers; name one for each")
        return self

    @model_validator(mode="after")
    def _no_server_sleeps(self) -> Self:
        if self.engine_sleep and (self.engine_urls or self.engine_servers):
            servers = f"engine_servers is {self.engine_servers}" if self.engine_servers else f"engine_urls is {','.join(self.engine_urls)}"
            raise ValueError(
                f"engine_sleep is true, but {servers}: servers share no GPU with the trainer and never sleep; unset one of the two"
            )
        return self


def urls_of(settings: InfraSettings, world: str) -> tuple[str, ...]:
    """The addresses of the servers of a world that are already up; of those without a world's name every world is expected."""
    pairs = [_NAMED.fullmatch(url) for url in settings.environment_urls]
    return tuple(
        pair.group(2) if pair else url
        for pair, url in zip(pairs, settings.environment_urls, strict=True)
        if pair is None or pair.group(1) == world
    )


def launch_of(settings: InfraSettings) -> Launch:
    """The launch file of the settings, or what holds without one."""
    return load_launch(settings.launch) if settings.launch else Launch()


_NAMED = re.compile(r"([A-Za-z0-9._:+-]+)=(https?://.*)")
"""An address with its world before it."""


def infra_settings() -> InfraSettings:
    """The settings of this process.

    Raises:
        SettingsError: One has a wrong value, or a variable with our prefix is no setting.
    """
    known = {_variable(field) for field in InfraSettings.model_fields}
    strange = []
    for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
        close = difflib.get_close_matches(name, known, 1)
        if name in RENAMED_SETTINGS:
            strange.append(f"{name}: is called {RENAMED_SETTINGS[name]} now")
        else:
            strange.append(f"{name}: there is no such setting; " + (f"did you mean {close[0]}?" if close else "unset it"))
    if strange:
        raise SettingsError("\n".join(strange))
    try:
        settings = InfraSettings()
        for name in ("environment_token", "engine_token"):
            token: SecretStr | None = getattr(settings, name)
            if token is not None:  # from the file `.env`, which the processes that this one starts do not read
                os.environ[_variable(name)] = token.get_secret_value()
        if settings.environment_urls:  # they decide which servers get the token
            os.environ[_variable("environment_urls")] = ",".join(settings.environment_urls)
        return settings
    except ValidationError as problem:
        raise SettingsError(f"these settings cannot be used:\n{explain(problem, 'the settings', _variable)}") from None


def _variable(field: str) -> str:
    return PREFIX + field.upper()
