"""Configuration of a trajectory collection: the policy, its tasks and its budgets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from configs.config_model import ConfigModel
from configs.conversation_start import ConversationStart
from configs.environment import WorldByName
from configs.experiment import Policy, Rollout
from configs.task_selection import TaskSelection


class Source(ConfigModel):
    """The policy that acts, and its prompt format."""

    kind: Literal["model", "vllm", "openai", "oracle", "random", "nearest-neighbour"]
    """What chooses the actions.

    - "model": a causal language model in this process.
    - "vllm": vLLM servers.
    - "openai": an endpoint of OpenAI's chat protocol.
    - "oracle": the environment's expert.
    - "random": a random valid action, in environments that list them.
    - "nearest-neighbour": the nearest-neighbour replay baseline. It replays the expert's actions in the training
      task whose text is most similar.
    """
    model: str | None = None
    """Hugging Face name or folder ("model"), or the endpoint's name of the model ("openai")."""
    urls: tuple[str, ...] = ()
    """Base URLs of the vLLM servers, or of the endpoint (.../v1)."""
    tokenizer: str | None = None
    """Model whose tokenizer and chat template produce token ids.

    Default: the model's own. None for an endpoint and the oracle.
    """
    action_format: Literal["react", "bare"] = "react"
    """Format of a turn: "react" = free thought, then "Action: ...", or "bare" = only the action."""
    instruction: bool = True
    """Whether the prompt begins with the environment's instruction."""
    conversation_start: ConversationStart = "system"
    """How the conversation begins: system, agentgym, a list of messages, or a file of messages."""
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: false} to disable a model's thinking.

    The action is parsed after </think>.
    """
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """dtype of a model in this process."""

    @model_validator(mode="after")
    def _check_source(self) -> Source:
        if self.kind in ("model", "openai") and not self.model:
            raise ValueError(f"model is missing, but kind {self.kind!r} requires one; give its name")
        if self.kind in ("vllm", "openai") and not self.urls:
            raise ValueError(f"urls is empty, but kind {self.kind!r} requires an address; give at least one")
        if self.kind == "openai" and len(self.urls) > 1:
            raise ValueError(f"urls has {len(self.urls)} addresses, but kind 'openai' supports one endpoint; give one")
        return self


TRAINED_FORM = (
    "action_format",
    "instruction",
    "conversation_start",
    "chat_template_kwargs",
    "dtype",
)
"""Fields of a source that must match the recipe that its model was trained with."""


def trained_form(policy: Policy) -> dict[str, Any]:
    """Return the source fields that a policy must be used with.

    The policy was trained on such turns and after such a prompt.
    """
    return {name: getattr(policy, name) for name in TRAINED_FORM}


class Collection(ConfigModel):
    """A set of trajectories to collect. Equal collections give equal plans of episodes."""

    environment: WorldByName
    """The environment, or its name alone."""
    source: Source
    """The policy that acts."""
    tasks: TaskSelection = "train"
    """Tasks to play: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Use only the first n of these tasks. Empty: all of them."""
    samples: PositiveInt = 1
    """Episodes per task."""
    horizon: PositiveInt = 30
    """Turn limit of an episode."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 is greedy."""
    seed: NonNegativeInt = 0
    """Seed of the sampling."""
    rollout: Rollout = Rollout()
    """Budgets, deadlines and limits. tasks_per_step, group_size and temperature are ignored."""

    @model_validator(mode="after")
    def _check_tasks(self) -> Collection:
        self.environment.check_tasks(self.tasks, "tasks")
        self.environment.check_instruction(self.source.instruction, self.source.conversation_start)
        return self
