"""What an experiment is: one tree of typed parts, written as a YAML recipe or filled in as a form.

Where it runs (addresses, folders, numbers of processes) is apart, in `configs.infrastructure`: the same recipe runs on a
laptop and on a node of GPUs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from configs.algorithm import ALGORITHMS, Algorithm
from configs.conversation_start import ConversationStart
from configs.curriculum import SCHEDULES, Curriculum
from configs.environment import Environment
from configs.part import Fraction, Part
from configs.task_selection import TaskSelection


class StarterPolicy(Part):
    """A small policy built from nothing and cloned from the oracle's episodes, for machines without a GPU and without a hub."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 3
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads; must divide hidden_size."""
    tasks: str = "wood-renamed-train"
    """Task list of the environment that the oracle demonstrates; as many of its tasks as the tokens take, drawn at random."""
    tokens: PositiveInt = 600_000
    """Tokens of demonstrations that the policy sees while it is cloned, repeats counted; at most, if `until_foretold` is given."""
    until_foretold: Fraction | None = None
    """Cloning comes to its end when the policy foretells this share of the oracle's episodes, new to it, to the last token: from
    seed to seed it takes another number of tokens until a policy begins to copy what it reads. Empty: it sees all of `tokens`."""
    learning_rate: PositiveFloat = 3e-3
    """Peak learning rate of the cloning."""
    demonstrations: PositiveInt = 5_000
    """Most episodes that the oracle plays; where they have fewer tokens than the policy is to see, they are repeated."""

    excerpts: tuple[Fraction, ...] = ()
    """Passes over the demonstrations before they are seen whole: of each observation the last three lines, what holds the next action, and
    so great a share of the other lines. In long pages a small policy does not find what to copy. Not counted in `tokens`."""
    first_weights: Literal["look-back", "copy"] = "look-back"
    """What attention does before it has learned anything: "look-back" sees the last words among random weights; "copy" goes on as the text
    went on before, which tasks of many names ask for, and takes a lower learning rate (2e-3)."""

    @model_serializer(mode="wrap")
    def _fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the fields that came later where they change nothing: what was built and measured before keeps its name."""
        fields: dict[str, Any] = handler(self)
        if not self.excerpts:
            fields.pop("excerpts", None)
        if self.first_weights == "look-back":
            fields.pop("first_weights", None)
        return fields

    @model_validator(mode="after")
    def _divisible(self) -> StarterPolicy:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        if self.first_weights == "copy" and self.heads % 2:
            raise ValueError(f'first_weights "copy" needs an even number of heads, not {self.heads}: words take up half of the width')
        return self


class Lora(Part):
    """Training of a correction of low rank to each linear layer, in place of the layers' own weights (arXiv 2106.09685)."""

    rank: PositiveInt = 32
    """Rank of each correction."""
    alpha: PositiveInt = 64
    """The correction's scale is alpha / rank."""


class Policy(Part):
    """The language model that acts, and how it speaks."""

    model: str = "starter"
    """Hugging Face name or folder of a causal language model with a chat template; "starter" builds the small policy below."""
    starter: StarterPolicy = StarterPolicy()
    """How the starter policy is made; used only when model is "starter"."""
    action_format: Literal["react", "bare"] = "react"
    """Form of a turn: "react" = free thought, then "Action: ..."; "bare" = the message is the action."""
    instruction: bool = True
    """Whether the prompt begins with the environment's instruction. The starter policy knows the rules by heart."""
    conversation_start: ConversationStart = "system"
    """How the conversation begins: system, agentgym, messages, or a file of them."""
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: false} to turn a model's thinking off. The action is read after </think>."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type of the engine's weights. The trainer keeps float32 master weights."""
    attn_implementation: str | None = None
    """What computes the attention of the trainer's models, by transformers' name: sdpa, eager, flash_attention_2 (wants flash-attn), ...;
    its own choice when empty. With flash_attention_2 and _3 methods by reinforcement pack the trajectories of a pass, without padding."""
    lora: Lora | None = None
    """Train low-rank corrections (LoRA) in place of all weights: gradients and optimiser state of a few per cent of them, and a KL term
    without a second model. Checkpoints are whole models all the same, with the corrections alone in adapter/. All weights when empty."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


SLOWEST_TOKEN_SECONDS = 0.1
"""Seconds for one token of a model whose progress cannot be seen: slower ones count as stuck."""
MAX_LEFT_OUT_SHARE = 0.2


class Rollout(Part):
    """How episodes are collected."""

    engine: Literal["vllm", "transformers"] = "vllm"
    """What generates: vLLM, or plain transformers (slow, for models that vLLM does not know)."""
    tasks_per_step: PositiveInt = 32
    """Groups in a batch: different tasks per training step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes of the same task in a group."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature. The loss uses the same temperature."""
    turn_tokens: PositiveInt = 512
    """Most tokens that the policy may write in one turn."""
    trajectory_tokens: PositiveInt = 10_752
    """Most tokens of a whole trajectory, prompt and observations included; the engine's context length."""
    max_concurrent_episodes: PositiveInt = 256
    """Episodes under way at once, at most; fewer where the engine's KV cache would not hold them all to their ends."""
    max_num_seqs: PositiveInt | None = None
    """Most sequences that an engine in this process computes at once (vLLM's option of this name); max_concurrent_episodes when empty. A
    little below it, the engine's batch stays full while other episodes wait for their environments."""
    request_seconds: PositiveFloat = 60.0
    """Longest time without a new token from a vLLM server that has a request. The server is then taken for stuck, and the request goes
    to another. A server without metrics gets as much more time as the request's tokens need at SLOWEST_TOKEN_SECONDS."""
    turn_seconds: PositiveFloat = 120.0
    """Longest time without progress in a turn. For the policy's message this is the time in which the engine writes no token. So a
    message of turn_tokens meets it at any speed, and no episode fails because its messages are long. A chat endpoint does not tell its
    progress and gets as much more time as turn_tokens need at SLOWEST_TOKEN_SECONDS. For the environment's answer it is the time of the
    answer, with all attempts. An episode that exceeds it fails and is never scored."""
    episode_seconds: PositiveFloat | None = None
    """Deadline of one episode; none when empty. It ends long episodes first. Episodes that it ends are left out and counted, an
    evaluation is then incomplete, and training stops above max_left_out_share."""
    batch_seconds: PositiveFloat = 14_400.0
    """Deadline of one batch: episodes that are not finished by then are given up, and their groups left out and counted."""
    max_off_policy_steps: NonNegativeInt = 0
    """Off-policy rollouts: while the stragglers of a batch finish and the trainer updates, episodes of so many next batches begin, with
    weights that are then up to so many training steps old. 0 is synchronous: each batch is played with the newest weights."""
    retries: NonNegativeInt = 2
    """Fresh attempts at a failed episode before its group is left out."""
    max_left_out_share: Fraction = MAX_LEFT_OUT_SHARE
    """Training stops before it learns from a step of which a larger share of the episodes is left out. Infrastructure broke these
    episodes, or a member of their group. Long episodes break more often, so what is left over is not a fair sample."""

    @model_serializer(mode="wrap")
    def _fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the default of `max_left_out_share`, so that runs from before this field keep their names."""
        fields: dict[str, Any] = handler(self)
        if self.max_left_out_share == MAX_LEFT_OUT_SHARE:
            fields.pop("max_left_out_share", None)
        return fields


class Evaluation(Part):
    """How the policy is measured on tasks that it never trained on."""

    tasks: TaskSelection = "test"
    """Tasks to measure on: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Use only the first so many of them; all when empty."""
    final_tasks: tuple[str, ...] = ()
    """Task lists that no choice was made by, looked at once, by `flows.before_after`; those of `tasks` when empty."""
    samples: PositiveInt = 1
    """Episodes per task."""
    horizon: PositiveInt = 30
    """Turn limit during evaluation, the same before, during and after training."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 is greedy."""
    each_phase: bool = True
    """Also measure at the end of each phase, not only before and after training."""
    every: PositiveInt | None = None
    """Measure after every so many training steps, whatever the schedule and `each_phase`; a phase ends there even if the horizon stays.
    Empty: a phase ends only where the horizon changes."""

    def is_due(self, step: int, last: int) -> bool:
        """Whether the policy is measured at the end of a phase.

        Args:
            step: Training steps done when the phase ends.
            last: Training steps of the whole run.
        """
        return self.each_phase or step == last or (self.every is not None and step % self.every == 0)


class Seeds(Part):
    """Every source of chance. The same seeds give the same run."""

    training: NonNegativeInt = 0
    """Order of the tasks and sampling of the training episodes."""
    evaluation: NonNegativeInt = 0
    """Sampling of the evaluation episodes."""
    starter: NonNegativeInt = 0
    """Weights and demonstrations of the starter policy."""


class Experiment(Part):
    """One ScalingInter-RL run: who learns, where, under which curriculum, by which algorithm, and how it is measured."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")] = "scaling-inter"
    """Groups the runs of a study in MLflow; also the folder of the run."""
    policy: Policy = Policy()
    """The language model."""
    environment: Environment = Environment()
    """The world."""
    curriculum: Annotated[SerializeAsAny[Curriculum], BeforeValidator(SCHEDULES.validated)]
    """The horizon over training."""
    algorithm: Annotated[SerializeAsAny[Algorithm], BeforeValidator(ALGORITHMS.validated)]
    """The update."""
    rollout: Rollout = Rollout()
    """The collection of episodes."""
    evaluation: Evaluation = Evaluation()
    """The measurement."""
    seeds: Seeds = Seeds()
    """The sources of chance."""
    checkpoint_every: PositiveInt = 10
    """Training steps between checkpoints; each phase also ends with one."""
    keep_checkpoints: PositiveInt = 2
    """Checkpoints kept for resuming, besides those at the ends of phases."""

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        self.environment.check_tasks(self.environment.train_tasks, "environment.train_tasks")
        self.environment.check_tasks(self.evaluation.tasks, "evaluation.tasks")
        self.environment.check_instruction(self.policy.instruction, self.policy.conversation_start)
        if self.rollout.turn_tokens >= self.rollout.trajectory_tokens:
            raise ValueError(
                f"rollout.turn_tokens ({self.rollout.turn_tokens}) must be below "
                f"rollout.trajectory_tokens ({self.rollout.trajectory_tokens})"
            )
        self.algorithm.check(self)
        batch = self.rollout.tasks_per_step * self.rollout.group_size
        parts = self.algorithm.mini_batches * (1 if self.algorithm.micro_batch_tokens else self.algorithm.passes)
        if parts > batch:
            raise ValueError(
                f"algorithm.mini_batches x micro_batches ({parts}) is more than the {batch} episodes of a batch "
                "(rollout.tasks_per_step x group_size); lower one of the two"
            )
        return self
