"""What the methods by reinforcement share: PPO's clipped loss (arXiv 1707.06347) and its options, whatever the advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from configs.algorithm import Algorithm
from configs.part import Part

if TYPE_CHECKING:
    import torch

    from configs.experiment import Experiment
    from tasks.training.experience import Experience


class Critic(Part):
    """The value function of a method: a copy of the policy's layers with a head of one number, trained beside the policy."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of its AdamW; it warms up like the policy's, unless it is pretrained."""
    pretraining_steps: NonNegativeInt = 0
    """Training steps at the start in which it alone learns, from what the unchanged policy does (arXiv 2503.01491, section 4.1)."""
    value_clip: PositiveFloat = 0.5
    """A value may leave the one before the update by so much; what exceeds it gets no gradient (arXiv 2005.12729, section 3)."""
    max_gradient_norm: PositiveFloat = 1.0
    """Its gradients are scaled down to this norm."""


class PolicyGradient(Algorithm):
    """Advantages of the policy's tokens in a clipped loss. A method defines `advantages`; the options are here."""

    compares_groups: ClassVar[bool] = True

    clip_low: NonNegativeFloat = 0.2
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The probability ratio is clipped above at 1 + clip_high; above clip_low it is "clip-higher" (arXiv 2503.14476, section 3.1)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative the ratio is also clipped above at this value, e.g. 3 (arXiv 1912.09729, equation 5); at least
    1 + clip_high."""
    ratio: Literal["token", "sequence"] = "token"
    """Probability ratio of each token, or the geometric mean over the trajectory's in its variant with an advantage for each token
    (GSPO-token, arXiv 2507.18071, equations 13 to 17; wants loss_aggregation: trajectory and clips near 3e-4)."""
    scale_advantages: Literal["batch", "none"] = "none"
    """What advantages are divided by: the standard deviation of the batch after taking off its mean (whitening), or nothing."""
    loss_aggregation: Literal["tokens", "trajectory", "constant"] = "tokens"
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
    truncated: Literal["scored", "masked", "bootstrapped"] = "scored"
    """Episodes that the horizon or a budget cut: count with the reward so far; carry no loss but stay in their group's baseline (arXiv
    2503.14476, section 3.4); or go on with the critic's value of where they were cut (ppo; arXiv 1712.00378)."""
    min_reward_range: NonNegativeFloat = 0.0
    """Groups whose rewards differ by less are left out of the update and of its means; 0 leaves none out (arXiv 2503.14476,
    section 3.2)."""
    max_resample_rounds: NonNegativeInt = 0
    """Dynamic sampling: how often zero-variance groups are replaced by other tasks' before the batch is used (arXiv 2503.14476,
    section 3.2). The cost is reported as rollout/discarded_..."""
    importance_correction: Literal["truncated", "behaviour"] = "truncated"
    """How the gap between the engine's and the trainer's probabilities is corrected: "truncated" weighs each token by their ratio,
    capped at importance_cap (one more forward pass); "behaviour" takes the engine's probabilities as the old ones in the clipped ratio."""
    importance_cap: PositiveFloat = 2.0
    """Largest weight of a token under "truncated"."""
    off_policy_mask: PositiveFloat | None = None
    """Sequence-level masking: tokens with a negative advantage carry no loss in a trajectory whose mean log(pi_engine / pi) per token
    exceeds this (arXiv 2512.02556, section 3.1); none are left out when empty."""

    def advantages(self, experience: Experience) -> torch.Tensor:
        """The advantage of each policy token. Shape (B, T), 0 outside the mask."""
        raise NotImplementedError

    def value_function(self) -> Critic | None:
        """Settings of the critic, for a method that learns one."""
        return None

    def check(self, experiment: Experiment) -> None:
        """See `Algorithm.check`."""
        if experiment.rollout.max_off_policy_steps and self.max_resample_rounds:
            raise ValueError(
                f"rollout.max_off_policy_steps ({experiment.rollout.max_off_policy_steps}) plays batches ahead, which "
                "algorithm.max_resample_rounds cannot use; set one of the two to 0"
            )

    def trainer(self) -> type[Any]:
        """See `Algorithm.trainer`."""
        from tasks.training.policy_gradient_trainer import PolicyGradientTrainer

        return PolicyGradientTrainer

    def batches(self) -> type[Any]:
        """Episodes of the present policy."""
        from tasks.training.rollout_batches import RolloutBatches

        return RolloutBatches

    @model_validator(mode="after")
    def _agrees(self) -> PolicyGradient:
        if self.truncated == "bootstrapped" and self.value_function() is None:
            raise ValueError(f"truncated: bootstrapped needs the critic of ppo, name is {self.name}; choose masked or scored")
        if self.ratio == "sequence" and self.loss_aggregation == "tokens":
            raise ValueError("ratio: sequence optimises trajectories, not tokens; set loss_aggregation: trajectory")
        if self.dual_clip is not None and self.dual_clip < 1 + self.clip_high:
            raise ValueError(
                f"dual_clip ({self.dual_clip:g}) below 1 + clip_high ({1 + self.clip_high:g}) would also clip where the advantage is "
                "positive; raise it, e.g. to 3, or lower clip_high"
            )
        if self.kl_in == "reward" and self.kl_coefficient == 0:
            raise ValueError("kl_in: reward does nothing while kl_coefficient is 0; set kl_coefficient, or leave kl_in out")
        return self
