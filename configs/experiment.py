"""What an experiment is: one tree of typed parts, written as a YAML recipe or filled in as a form.

Where it runs (addresses, folders, numbers of processes) is apart, in `configs.infrastructure`: the same recipe runs on a
laptop and on a node of GPUs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from configs.conversation_start import ConversationStart
from configs.curriculum import Curriculum
from configs.environment import Environment
from configs.part import Part
from configs.task_selection import TaskSelection

Fraction = Annotated[float, Field(ge=0, le=1)]


class StarterPolicy(Part):
    """A small policy built from nothing and cloned from the oracle's episodes, for machines without a GPU and without a hub."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 3
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads; must divide hidden_size."""
    tasks: str = "wood-renamed"
    """Task list of the environment whose goals the oracle demonstrates."""
    tokens: PositiveInt = 600_000
    """Tokens of demonstrations that the policy sees while it is cloned, repeats counted."""
    learning_rate: PositiveFloat = 3e-3
    """Peak learning rate of the cloning."""
    temperature: PositiveFloat = 1.4
    """The clone's logits are divided by it in the end. A clone is surer than it is right; above 1 it tries more, which
    reinforcement learning lives on."""

    @model_validator(mode="after")
    def _divisible(self) -> StarterPolicy:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        return self


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
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type of the engine's weights. The trainer keeps float32 master weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


class Critic(Part):
    """The value function of PPO: a copy of the policy's layers with a head of one number, trained beside the policy."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of its AdamW; it warms up like the policy's."""
    value_clip: PositiveFloat = 0.5
    """A value may leave the one before the update by so much; what exceeds it gets no gradient (arXiv 2005.12729, section 3)."""
    max_gradient_norm: PositiveFloat = 1.0
    """Its gradients are scaled down to this norm."""


class Offline(Part):
    """What sft, dpo and agentevol learn from."""

    trajectories: str | None = None
    """Parquet file, or folder of such files (the `rollouts` of another run), with trajectories of the same tokenizer. Empty: sft and dpo
    explore with the policy that training starts from."""
    explore_groups: PositiveInt = 64
    """Groups of episodes that one exploration plays, each of rollout.group_size."""
    explore_every: PositiveInt = 10
    """agentevol explores anew after so many steps, and keeps the successes of all its explorations."""
    preference_weight: PositiveFloat = 0.1
    """dpo's beta: how strongly the policy is held to the one that training starts from (arXiv 2305.18290)."""
    cloning_weight: NonNegativeFloat = 0.0
    """dpo adds so many times sft's loss on the successes (arXiv 2404.19733, equation 2, with 1), since it may else make both
    trajectories of a pair less likely."""


class Algorithm(Part):
    """How trajectories become an update of the policy."""

    name: Literal["grpo", "rloo", "reinforce++", "ppo", "gigpo", "sft", "dpo", "agentevol"] = "grpo"
    """The method. By reinforcement: grpo (arXiv 2402.03300), rloo (2402.14740), reinforce++ (2501.03262), ppo (1707.06347, with a
    critic), gigpo (2505.10978). By imitation: sft (clone successes), dpo (2305.18290; success over failure of the same task), agentevol
    (2406.04151; explore, keep what succeeded, clone, repeat)."""
    steps: PositiveInt
    """Training steps; one step collects one batch of groups and learns from it."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly from 0; it stays constant afterwards."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    max_gradient_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    epochs: PositiveInt = 1
    """Passes over each batch of trajectories."""
    mini_batches: PositiveInt = 1
    """Optimiser updates per pass: the batch is cut into so many parts, each with members of every group."""
    micro_batches: PositiveInt = 4
    """Forward-backward passes per optimiser update on each process: more of them take less memory."""
    clip_low: NonNegativeFloat = 0.2
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The probability ratio is clipped above at 1 + clip_high; above clip_low it is "clip-higher" (arXiv 2503.14476, section 3.1)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative the ratio is also clipped above at this value, e.g. 3 (arXiv 1912.09729, equation 5); at least
    1 + clip_high."""
    ratio: Literal["token", "sequence"] = "token"
    """Probability ratio of each token, or the geometric mean over the trajectory's in its variant with an advantage for each token
    (GSPO-token, arXiv 2507.18071, equations 13 to 17; wants normalise_by: trajectory and clips near 3e-4)."""
    normalise_by: Literal["tokens", "trajectory", "constant"] = "tokens"
    """What the loss is a mean over: all policy tokens of the mini-batch (arXiv 2503.14476; failures that run into the horizon then outweigh
    shorter successes), first each trajectory's tokens and then trajectories (arXiv 2402.03300), or trajectories with a constant length,
    rollout.trajectory_tokens (arXiv 2503.20783)."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the policy's entropy, which the loss rewards; a mean of the same kind as the loss (AgentGym-RL's scripts: 0.001)."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the starting policy; 0 keeps no reference model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term goes: into the loss (low-variance estimator, arXiv 2402.03300, times the ratio, 2512.02556), or off each token's
    reward (log-ratio of what was sampled, arXiv 2203.02155)."""
    scale_advantages: Literal["paper", "group", "batch", "none"] = "paper"
    """What advantages are divided by: the standard deviation of their group's rewards, or of the batch after taking off its mean, or
    nothing. "paper": group for grpo and gigpo, batch for reinforce++ and ppo, none for rloo."""
    discount: Fraction | None = None
    """Gamma: for each policy token in ppo and reinforce++, for each turn in gigpo. Empty: 1, and 0.95 for gigpo."""
    gae_decay: Fraction = 1.0
    """PPO's lambda (arXiv 1506.02438)."""
    step_weight: NonNegativeFloat = 1.0
    """GiGPO's weight of the step-level advantage beside the episode-level one."""
    truncated: Literal["scored", "masked", "bootstrapped"] = "scored"
    """Episodes that the horizon or a budget cut: count with the reward so far; carry no loss but stay in their group's baseline (arXiv
    2503.14476, section 3.4); or go on with the critic's value of where they were cut (ppo; arXiv 1712.00378)."""
    least_spread: NonNegativeFloat = 0.0
    """Groups whose rewards differ by less are left out of the update and of its means; 0 leaves none out (arXiv 2503.14476,
    section 3.2)."""
    refills: NonNegativeInt = 0
    """Dynamic sampling: how often groups without spread are replaced by other tasks' before the batch is used (arXiv 2503.14476,
    section 3.2). The cost is reported as rollout/discarded_..."""
    importance_correction: Literal["truncated", "behaviour"] = "truncated"
    """How the gap between the engine's and the trainer's probabilities is corrected: "truncated" weighs each token by their ratio,
    capped at importance_cap (one more forward pass); "behaviour" takes the engine's probabilities as the old ones in the clipped ratio."""
    importance_cap: PositiveFloat = 2.0
    """Largest weight of a token under "truncated"."""
    critic: Critic = Critic()
    """PPO's value function."""
    offline: Offline = Offline()
    """What sft, dpo and agentevol learn from."""
    on_collapse: Literal["report", "stop", "roll_back"] = "report"
    """What follows when training collapses: only a report; the run stops; or it stops and the checkpoints since the last good step go."""

    @property
    def imitates(self) -> bool:
        """Whether the method clones or compares trajectories instead of reinforcing them."""
        return self.name in ("sft", "dpo", "agentevol")

    @property
    def compares_groups(self) -> bool:
        """Whether a trajectory's advantage is relative to the others of its group, which must then be whole."""
        return self.name in ("grpo", "rloo", "gigpo")

    @property
    def scaling(self) -> Literal["group", "batch", "none"]:
        """What advantages are divided by, "paper" looked up."""
        if self.scale_advantages != "paper":
            return self.scale_advantages
        return {"grpo": "group", "gigpo": "group", "reinforce++": "batch", "ppo": "batch"}.get(self.name, "none")  # type: ignore[return-value]

    @property
    def gamma(self) -> float:
        """The discount, "empty" looked up."""
        return self.discount if self.discount is not None else 0.95 if self.name == "gigpo" else 1.0

    @model_validator(mode="after")
    def _agrees(self) -> Algorithm:
        if self.scale_advantages == "group" and self.name not in ("grpo", "gigpo"):
            raise ValueError(f"scale_advantages: group is for grpo and gigpo, not {self.name}; choose batch, none or paper")
        if self.truncated == "bootstrapped" and self.name != "ppo":
            raise ValueError(f"truncated: bootstrapped needs the critic of ppo, name is {self.name}; choose masked or scored")
        if self.ratio == "sequence" and self.normalise_by == "tokens":
            raise ValueError("ratio: sequence optimises trajectories, not tokens; set normalise_by: trajectory")
        if self.dual_clip is not None and self.dual_clip < 1 + self.clip_high:
            raise ValueError(
                f"dual_clip ({self.dual_clip:g}) below 1 + clip_high ({1 + self.clip_high:g}) would also clip where the advantage is "
                "positive; raise it, e.g. to 3, or lower clip_high"
            )
        if self.kl_in == "reward" and self.kl_coefficient == 0:
            raise ValueError("kl_in: reward does nothing while kl_coefficient is 0; set kl_coefficient, or leave kl_in out")
        if self.name == "agentevol" and self.offline.trajectories is not None:
            raise ValueError("offline.trajectories is for sft and dpo; agentevol explores by itself: leave it out")
        return self


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
    """Deadline of one HTTP request to a vLLM server; it is then taken for stuck, and the request goes to another."""
    turn_seconds: PositiveFloat = 120.0
    """Deadline of the policy's message and, again, of the environment's answer, attempts included; what exceeds it fails the
    episode, it never scores it."""
    episode_seconds: PositiveFloat = 1800.0
    """Deadline of one episode."""
    batch_seconds: PositiveFloat = 14_400.0
    """Deadline of one batch: episodes that are not finished by then are given up, and their groups left out."""
    max_off_policy_steps: NonNegativeInt = 0
    """Off-policy rollouts: while the stragglers of a batch finish and the trainer updates, episodes of so many next batches begin, with
    weights that are then up to so many training steps old. 0 is synchronous: each batch is played with the newest weights."""
    retries: NonNegativeInt = 2
    """Fresh attempts at a failed episode before its group is left out."""


class Evaluation(Part):
    """How the policy is measured on tasks that it never trained on."""

    tasks: TaskSelection = "test"
    """Tasks to measure on: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Use only the first so many of them; all when empty."""
    samples: PositiveInt = 1
    """Episodes per task."""
    horizon: PositiveInt = 30
    """Turn limit during evaluation, the same before, during and after training."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 is greedy."""
    each_phase: bool = True
    """Also measure at the end of each phase, not only before and after training."""


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
    curriculum: Curriculum
    """The horizon over training."""
    algorithm: Algorithm
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
        if self.rollout.turn_tokens >= self.rollout.trajectory_tokens:
            raise ValueError(
                f"rollout.turn_tokens ({self.rollout.turn_tokens}) must be below "
                f"rollout.trajectory_tokens ({self.rollout.trajectory_tokens})"
            )
        if self.rollout.max_off_policy_steps and (self.algorithm.refills or self.algorithm.imitates):
            raise ValueError(
                f"rollout.max_off_policy_steps ({self.rollout.max_off_policy_steps}) plays batches ahead, which algorithm.refills and "
                "imitation cannot use; "
                "set rollout.max_off_policy_steps: 0"
            )
        batch = self.rollout.tasks_per_step * self.rollout.group_size
        parts = self.algorithm.mini_batches * self.algorithm.micro_batches
        if parts > batch:
            raise ValueError(
                f"algorithm.mini_batches x micro_batches ({parts}) is more than the {batch} episodes of a batch "
                "(rollout.tasks_per_step x group_size); lower one of the two"
            )
        return self
