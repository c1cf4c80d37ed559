"""Configuration of a trajectory collection: the policy, its tasks and its budgets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import (
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from configs.config_model import ConfigModel, shown_last
from configs.environment import WorldByName
from configs.experiment import Rollout, TurnFormat
from configs.task_selection import TaskSelection, check_distinct


class Source(TurnFormat):
    """The policy that acts, and its prompt format."""

    kind: Literal["model", "vllm", "openai", "oracle", "random"]
    """What chooses the actions.

    - "model": a causal language model in this process.
    - "vllm": vLLM servers.
    - "openai": an endpoint of OpenAI's chat protocol.
    - "oracle": the environment's expert.
    - "random": a random valid action, in environments that list them.
    """
    model: str | None = None
    """Hugging Face name or folder ("model"), or the endpoint's name of the model ("openai")."""
    urls: tuple[str, ...] = ()
    """Base URLs of the vLLM servers, or of the endpoint (.../v1)."""
    tokenizer: str | None = None
    """Model whose tokenizer and chat template produce token ids.

    Default: the model's own. None for an endpoint and the oracle.
    """

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not re.match("https?://[^/]", url):
                raise ValueError(f"{url!r} is not a URL; write it like http://host:8000/v1")
        return value

    @property
    def label(self) -> str:
        """A short name of the policy, e.g. "step-000040", "gpt-4.1" or "oracle"."""
        return Path(self.model).name if self.model else self.kind

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.kind in ("model", "openai") and not self.model:
            raise ValueError(
                f"model is missing, but kind {self.kind!r} requires one; give its name"
            )
        if self.kind in ("vllm", "openai") and not self.urls:
            raise ValueError(
                f"urls is empty, but kind {self.kind!r} requires an address; give at least one"
            )
        if self.kind == "openai" and self.compaction != "none":
            raise ValueError(
                f"compaction is {self.compaction!r}, but kind 'openai' sends whole conversations; "
                "set it to 'none'"
            )
        if self.kind == "openai" and len(self.urls) > 1:
            raise ValueError(
                f"urls has {len(self.urls)} addresses, but kind 'openai' supports one endpoint; "
                "give one"
            )
        return self


class Played(ConfigModel):
    """What collections and evaluations share: a policy in an environment."""

    model_config = ConfigDict(json_schema_extra=shown_last("n_tasks", "samples", "seed", "rollout"))

    environment: WorldByName
    """The environment, or its name alone."""
    source: Source
    """The policy that acts.

    If a form names a checkpoint, the checkpoint's recipe replaces the default values of the prompt
    and turn format, rollout.turn_tokens and rollout.trajectory_tokens.
    """
    n_tasks: PositiveInt | None = None
    """Use only the first n tasks of each list. Empty: all of them."""
    samples: PositiveInt = 1
    """Episodes per task."""
    seed: NonNegativeInt = 0
    """Seed of the sampling. Policies that are compared in pairs need the same seed."""
    rollout: Rollout = Rollout()
    """Budgets, deadlines and limits. tasks_per_step, group_size and temperature are ignored."""

    @model_validator(mode="after")
    def _check_instruction(self) -> Self:
        self.environment.check_instruction(self.source.instruction, self.source.conversation_start)
        return self


class Collection(Played):
    """A set of trajectories to collect. Equal collections give equal plans of episodes."""

    tasks: TaskSelection = "train"
    """Tasks to play: the name of a list, indices, or a file of indices such as AgentGym's."""
    horizon: PositiveInt = 30
    """Turn limit of an episode."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 is greedy."""

    @model_validator(mode="after")
    def _check_tasks(self) -> Self:
        self.environment.check_tasks(self.tasks, "tasks")
        check_distinct(self.tasks, "tasks")
        return self
