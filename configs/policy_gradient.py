"""Configuration of the RL algorithms: PPO's clipped loss (arXiv 1707.06347) and its options.

`tasks/training/algorithms` has the advantages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
    model_validator,
)

from configs.algorithm import Algorithm
from configs.config_model import ConfigModel, Fraction
from configs.plugins import UPDATE_METRICS, check_names, plugin_names

if TYPE_CHECKING:
    from configs.experiment import Experiment


class Critic(ConfigModel):
    """The value function of a method: a copy of the policy's layers with a scalar head.

    It is trained together with the policy.
    """

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of the critic's AdamW. It warms up with the policy's learning rate,
    unless the critic is pretrained."""
    pretraining_steps: NonNegativeInt = 0
    """Training steps at the start in which only the critic trains, on episodes of the unchanged
    policy (arXiv 2503.01491, section 4.1)."""
    value_clip: PositiveFloat = 0.5
    """Maximum change of a value from its value before the update. Larger changes get no gradient
    (arXiv 2005.12729, section 3)."""
    max_gradient_norm: PositiveFloat = 1.0
    """Maximum norm of the critic's gradients. Larger gradients are scaled down."""


class PolicyGradient(Algorithm):
    """Base of the RL algorithms: the options of PPO's clipped loss.

    The loss works with any advantages. A subclass in another package computes them in a method
    `advantages(self, experience)`.
    """

    compares_groups: ClassVar[bool] = True

    loss: Literal["clipped", "cispo", "sapo", "vespo", "luspo"] = "clipped"
    """Form of the loss.

    - `clipped`: PPO's minimum of the plain and the clipped ratio (arXiv 1707.06347)
    - `cispo`: log-probabilities weighted by the ratio, which is capped at 1 + clip_high and
      carries no gradient (2506.13585). Needs loss_aggregation: tokens.
    - `sapo`: a smooth gate instead of the clip (2511.20347). Needs loss_aggregation: trajectory.
    - `vespo`: log-probabilities weighted by a smooth function of the trajectory's ratio
      (2602.10693). Needs loss_aggregation: tokens and importance_correction: behaviour.
    - `luspo`: the clipped ratio of the trajectory, summed over its tokens (2602.05261). Needs
      ratio: sequence and loss_aggregation: trajectory.

    The forms equal TRL's, with its default temperatures (sapo) and exponents (vespo).
    """
    trajectories: str | None = None
    """Parquet file, or folder of such files (a recording of `agentgym serve`), with episodes that
    the policy has played already. Episodes of the same task form groups of at most
    rollout.group_size. They are on-policy in the first step: the policy must be the one that
    played. Greedy episodes are not used. If empty, the policy plays episodes in every step."""
    clip_low: NonNegativeFloat = 0.2
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The probability ratio is clipped above at 1 + clip_high. Above clip_low it is
    "clip-higher" (arXiv 2503.14476, section 3.1)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Additional upper clip of the ratio for negative advantages, e.g. 3 (arXiv 1912.09729,
    equation 5). At least 1 + clip_high. Empty for none."""
    ratio: Literal["token", "sequence"] = "token"
    """The probability ratio in the loss. `token` uses the ratio of each token. `sequence` uses
    the geometric mean over the trajectory, in its variant with an advantage for each token
    (GSPO-token, arXiv 2507.18071, equations 13 to 17). It needs loss_aggregation: trajectory and
    clips near 3e-4."""
    scale_advantages: Literal["batch", "none"] = "none"
    """Normalisation of the advantages. `batch` subtracts the batch mean and divides by the batch
    standard deviation (whitening). `none` leaves them unchanged."""
    loss_aggregation: Literal["tokens", "trajectory", "constant"] = "tokens"
    """How the loss is averaged. `tokens` averages over all policy tokens of the mini-batch
    (arXiv 2503.14476). Failures that reach the horizon then outweigh shorter successes.
    `trajectory` averages over each trajectory's tokens, then over trajectories
    (arXiv 2402.03300). `constant` sums each trajectory's tokens, divides by the constant length
    rollout.trajectory_tokens and averages over trajectories (arXiv 2503.20783)."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the policy's entropy, which is subtracted from the loss. It is averaged like the
    loss (AgentGym-RL's scripts: 0.001)."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the initial policy. 0 needs no reference model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Place of the KL term. `loss` adds it to the loss (low-variance estimator,
    arXiv 2402.03300, times the ratio, 2512.02556). `reward` subtracts it from each token's
    reward (log-ratio of the sampled tokens, arXiv 2203.02155)."""
    truncated: Literal["scored", "masked", "bootstrapped"] = "scored"
    """Treatment of episodes truncated by the horizon or a budget. `scored` uses the reward so
    far. `masked` removes them from the loss but keeps them in their group's baseline
    (arXiv 2503.14476, section 3.4). `bootstrapped` adds the critic's value of the final state
    (ppo; arXiv 1712.00378)."""
    min_reward_range: NonNegativeFloat = 0.0
    """Groups with a smaller reward range are left out of the update and of its means. 0 keeps
    all groups (arXiv 2503.14476, section 3.2)."""
    max_resample_rounds: NonNegativeInt = 0
    """Dynamic sampling: maximum number of rounds in which zero-variance groups are replaced by
    groups of other tasks before the update (arXiv 2503.14476, section 3.2). The cost is logged
    as rollout/discarded_..."""
    task_order: Literal["shuffled", "by_success"] = "shuffled"
    """Order of the training tasks.

    - `shuffled`: one pass over all tasks after the other, each in another order
    - `by_success`: after the first pass, tasks with mixed results are drawn more often than tasks
      whose episodes lately all succeeded or all failed. The weight of a task is the expected
      variance of its success (arXiv 2502.12272), see tasks/training/task_results.py.
    """
    importance_correction: Literal[
        "truncated", "masked", "sequence_truncated", "sequence_masked", "behaviour"
    ] = "truncated"
    """Correction of the gap between the engine's and the trainer's probabilities.

    - `truncated`: weight each token by the ratio of the two, at most importance_cap
    - `masked`: the same, but a ratio above importance_cap counts as 0
    - `sequence_truncated`, `sequence_masked`: the same with the product of the ratios over the
      trajectory's tokens
    - `behaviour`: use the engine's probabilities as the old ones in the loss, without weights.
      It saves a forward pass over episodes of older weights.
    """
    importance_cap: PositiveFloat = 2.0
    """Maximum importance weight. Unused with importance_correction: behaviour."""
    off_policy_mask: PositiveFloat | None = None
    """Threshold of sequence-level masking (arXiv 2512.02556, section 3.1). Tokens with a
    negative advantage are removed from the loss if the mean log(pi_engine / pi) per token of
    their trajectory exceeds it. Empty for no masking."""
    update_metrics: tuple[str, ...] = ()
    """Additional metrics of the update, by the entry points of installed packages. Each is logged
    as update/NAME."""

    def value_function(self) -> Critic | None:
        """Return the critic's settings, or None if the method has no critic."""
        return None

    def reference_model(self) -> str | None:
        """Return the model of the KL term, or None for the policy that training starts from."""
        return None

    def reference_server(self) -> str | None:
        """Return the base URL of a vLLM server with the model of the KL term, if there is one."""
        return None

    def check(self, experiment: Experiment) -> None:
        """Check the algorithm against the rest of the recipe. Implements `Algorithm.check`."""
        for name, value in (
            ("rollout.stream", experiment.rollout.stream),
            ("rollout.max_off_policy_steps", experiment.rollout.max_off_policy_steps),
            ("algorithm.max_resample_rounds", self.max_resample_rounds),
            ("algorithm.task_order", self.task_order if self.task_order != "shuffled" else None),
        ):
            if self.trajectories is not None and value:
                raise ValueError(
                    f"{name} ({value}) needs episodes of the current policy, but "
                    f"algorithm.trajectories ({self.trajectories}) replaces them; remove one"
                )
        if self.trajectories is not None and experiment.curriculum.looks_back:
            raise ValueError(
                f"curriculum.kind ({experiment.curriculum.kind}) needs episodes of the current "
                f"policy, but algorithm.trajectories ({self.trajectories}) replaces them; set "
                "curriculum.kind to another schedule, e.g. fixed"
            )
        if experiment.rollout.max_off_policy_steps and self.max_resample_rounds:
            raise ValueError(
                f"rollout.max_off_policy_steps ({experiment.rollout.max_off_policy_steps}) and "
                f"algorithm.max_resample_rounds ({self.max_resample_rounds}) exclude each other; "
                "set one of them to 0"
            )
        if experiment.rollout.stream:
            _check_stream(experiment)

    def whole_episodes_only(self) -> str | None:
        """Return the first setting that does so. Implements `Algorithm.whole_episodes_only`."""
        if self.loss_aggregation == "trajectory":
            if self.kl_in == "loss" and self.kl_coefficient:
                return f"kl_coefficient ({self.kl_coefficient:g}) with loss_aggregation: trajectory"
            if self.entropy_coefficient:
                named = f"entropy_coefficient ({self.entropy_coefficient:g})"
                return f"{named} with loss_aggregation: trajectory"
        if self.ratio == "sequence":
            return "ratio: sequence"
        if self.loss == "vespo":
            return "loss: vespo"
        if self.importance_correction.startswith("sequence"):
            return f"importance_correction: {self.importance_correction}"
        return (
            None if self.off_policy_mask is None else f"off_policy_mask ({self.off_policy_mask:g})"
        )

    @field_validator("update_metrics")
    @classmethod
    def _check_update_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_names(
            names,
            f"update metric (entry point of the group {UPDATE_METRICS})",
            plugin_names(UPDATE_METRICS),
        )
        return names

    @model_validator(mode="after")
    def _check_loss(self) -> PolicyGradient:
        needs: dict[str, dict[str, object]] = {
            "clipped": {},
            "cispo": {"loss_aggregation": "tokens", "dual_clip": None},
            "sapo": {"loss_aggregation": "trajectory", "ratio": "token", "dual_clip": None},
            "vespo": {
                "loss_aggregation": "tokens",
                "importance_correction": "behaviour",
                "dual_clip": None,
            },
            "luspo": {"loss_aggregation": "trajectory", "ratio": "sequence"},
        }
        for field, needed in needs[self.loss].items():
            if (found := getattr(self, field)) != needed:
                wanted = f"set it to {needed}" if needed else "remove it"
                raise ValueError(f"loss: {self.loss} excludes {field}: {found}; {wanted}")
        return self

    @model_validator(mode="after")
    def _check_loss_options(self) -> PolicyGradient:
        if self.truncated == "bootstrapped" and self.value_function() is None:
            raise ValueError(
                f"truncated: bootstrapped requires a critic, which {self.name} does not have; set "
                "it to masked or scored, or name to ppo"
            )
        if self.ratio == "sequence" and self.loss_aggregation == "tokens":
            raise ValueError(
                "ratio: sequence excludes loss_aggregation: tokens; set loss_aggregation to "
                "trajectory"
            )
        if self.dual_clip is not None and self.dual_clip < 1 + self.clip_high:
            raise ValueError(
                f"dual_clip ({self.dual_clip:g}) must be at least 1 + clip_high "
                f"({1 + self.clip_high:g}); raise it, e.g. to 3, or lower clip_high"
            )
        if self.kl_in == "reward" and self.kl_coefficient == 0:
            raise ValueError(
                "kl_in: reward has no effect with kl_coefficient 0; set kl_coefficient, or remove "
                "kl_in"
            )
        return self


class GRPO(PolicyGradient):
    """Group-relative policy optimisation.

    The paper averages the loss over each trajectory's tokens (loss_aggregation: trajectory).
    """

    scale_advantages: Literal["group", "batch", "none"] = "group"  # type: ignore[assignment]
    """Divisor of the advantages. `group` is the standard deviation of the group's rewards, as in
    the paper. `batch` subtracts the batch mean and divides by the batch standard deviation.
    `none` is no division (arXiv 2503.20783)."""


class RLOO(PolicyGradient):
    """REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""


class ReinforcePlusPlus(PolicyGradient):
    """Reward-to-go of each token, relative to the whole batch."""

    compares_groups: ClassVar[bool] = False

    discount: Fraction = 1.0
    """Gamma, per policy token."""
    scale_advantages: Literal["batch", "none"] = "batch"
    """Normalisation of the advantages. `batch` subtracts the batch mean and divides by the batch
    standard deviation, as in the paper. `none` leaves them unchanged."""


class PPO(PolicyGradient):
    """Advantages from a learned value function, without comparison of groups."""

    compares_groups: ClassVar[bool] = False

    discount: Fraction = 1.0
    """Gamma, per policy token."""
    gae_lambda: Fraction = 1.0
    """Lambda of the advantages (arXiv 1506.02438)."""
    scale_advantages: Literal["batch", "none"] = "batch"
    """Normalisation of the advantages. `batch` subtracts the batch mean and divides by the batch
    standard deviation. `none` leaves them unchanged."""
    critic: Critic = Critic()
    """The value function."""

    @model_validator(mode="after")
    def _check_pretraining(self) -> PPO:
        if self.critic.pretraining_steps >= self.steps:
            raise ValueError(
                f"critic.pretraining_steps ({self.critic.pretraining_steps}) must be below steps "
                f"({self.steps}), or the policy never trains"
            )
        return self

    def value_function(self) -> Critic:
        """Return the critic's settings. Implements `PolicyGradient.value_function`."""
        return self.critic


class GiGPO(GRPO):
    """Group-in-group policy optimisation, with credit for episodes and for turns.

    A world may define when two states are equal.
    """

    discount: Fraction = 0.95
    """Gamma, per turn."""
    step_weight: NonNegativeFloat = 1.0
    """Weight of the step-level advantage, which is added to the episode-level one."""


class Distillation(PolicyGradient):
    """On-policy distillation: a teacher judges every token of the policy's own episodes.

    The environment's rewards are not used (arXiv 2306.13649).
    """

    compares_groups: ClassVar[bool] = False

    teacher: str
    """The teacher: Hugging Face name, folder, checkpoint of a run, or the address of a vLLM server
    that serves it without a key, e.g. http://127.0.0.1:8000. It needs the policy's tokenizer, and
    is usually larger. A server needs a context above rollout.trajectory_tokens."""
    kl_coefficient: PositiveFloat = 1.0
    """Factor of the advantages log pi_teacher - log pi of the sampled tokens."""
    kl_in: Literal["reward"] = "reward"
    """Place of the KL term: always the reward, here the only one."""

    def reference_model(self) -> str | None:
        """Return the teacher, or None if it is on a server.

        Implements `PolicyGradient.reference_model`.
        """
        return self.teacher if self.reference_server() is None else None

    def reference_server(self) -> str | None:
        """Return the teacher's server. Implements `PolicyGradient.reference_server`."""
        if not self.teacher.startswith(("http://", "https://")):
            return None
        return self.teacher.rstrip("/").removesuffix("/v1")

    def check(self, experiment: Experiment) -> None:
        """Check the algorithm against the rest of the recipe. Implements `Algorithm.check`."""
        super().check(experiment)
        for name in ("min_reward_range", "max_resample_rounds"):
            if getattr(self, name):
                raise ValueError(
                    f"algorithm.{name} ({getattr(self, name):g}) filters groups by their rewards, "
                    "which distillation does not use; set it to 0"
                )
        if self.reference_server() is not None and experiment.rollout.temperature != 1:
            raise ValueError(
                f"rollout.temperature ({experiment.rollout.temperature:g}) must be 1, because the "
                f"server of algorithm.teacher ({self.teacher}) scores tokens at temperature 1"
            )


def _check_stream(experiment: Experiment) -> None:
    steps = experiment.rollout.max_off_policy_steps
    if steps < 2:
        raise ValueError(
            f"rollout.stream (true) needs rollout.max_off_policy_steps ({steps}) of at least 2, "
            "one for the batch that starts early and one for groups that take longer; raise it, or "
            "set stream to false"
        )
    if experiment.curriculum.looks_back:
        raise ValueError(
            f"curriculum.kind ({experiment.curriculum.kind}) needs steps with episodes of one "
            "horizon, but rollout.stream (true) mixes the horizons of several steps; set stream to "
            "false, or curriculum.kind to another schedule, e.g. stepwise"
        )
