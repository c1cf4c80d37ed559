"""What a collection of trajectories is: who plays which tasks, under which budgets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from configs.conversation_start import ConversationStart
from configs.environment import WorldByName
from configs.experiment import Policy, Rollout
from configs.part import Part
from configs.task_selection import TaskSelection


class Source(Part):
    """Who plays."""

    kind: Literal["model", "vllm", "openai", "oracle", "random", "twin"]
    """"model" = a causal language model in this process; "vllm" = vLLM servers; "openai" = an endpoint of OpenAI's chat protocol;
    "oracle" = the world's expert; "random" = any valid action, drawn at random, in worlds that tell which are; "twin" = what
    the expert does in the training task that reads most alike."""
    model: str | None = None
    """Hugging Face name or folder ("model"), or the endpoint's name of it ("openai")."""
    urls: tuple[str, ...] = ()
    """Base URLs of the vLLM servers, or of the endpoint (.../v1)."""
    tokenizer: str | None = None
    """Whose tokenizer and chat template give token ids. Default: the model's own, none for endpoint and oracle."""
    action_format: Literal["react", "bare"] = "react"
    """Form of a turn: "react" = free thought, then "Action: ..."; "bare" = the message is the action."""
    instruction: bool = True
    """Whether the prompt begins with the environment's instruction."""
    conversation_start: ConversationStart = "system"
    """How the conversation begins: system, agentgym, messages, or a file of them."""
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: false} to turn a model's thinking off. The action is read after </think>."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type of a model in this process."""

    @model_validator(mode="after")
    def _complete(self) -> Source:
        if self.kind in ("model", "openai") and not self.model:
            raise ValueError(f"model is missing: kind {self.kind!r} needs the name of one")
        if self.kind in ("vllm", "openai") and not self.urls:
            raise ValueError(f"urls is empty: kind {self.kind!r} needs at least one")
        if self.kind == "openai" and len(self.urls) > 1:
            raise ValueError(f"urls holds {len(self.urls)} addresses: kind 'openai' takes one endpoint")
        return self


TRAINED_FORM = ("action_format", "instruction", "conversation_start", "chat_template_kwargs", "dtype")
"""Fields of a source that must equal those of the recipe that its model was trained by."""


def trained_form(policy: Policy) -> dict[str, Any]:
    """The fields of a source that a recipe's policy must be used with: it was trained on such turns, after such a prompt."""
    return {name: getattr(policy, name) for name in TRAINED_FORM}


class Collection(Part):
    """Trajectories to be collected. The same collection gives the same plan of episodes."""

    environment: WorldByName
    """The world."""
    source: Source
    """Who plays."""
    tasks: TaskSelection = "train"
    """Tasks to play: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Only the first so many of them; all when empty."""
    samples: PositiveInt = 1
    """Episodes per task."""
    horizon: PositiveInt = 30
    """Turn limit."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 is greedy."""
    seed: NonNegativeInt = 0
    """Seed of the sampling."""
    rollout: Rollout = Rollout()
    """Budgets, deadlines, bounds; tasks_per_step, group_size and temperature are not used."""

    @model_validator(mode="after")
    def _fits(self) -> Collection:
        self.environment.check_tasks(self.tasks, "tasks")
        self.environment.check_instruction(self.source.instruction, self.source.conversation_start)
        return self
