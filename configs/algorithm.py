"""Fields that all algorithms share, and the registry of algorithms (`ALGORITHMS`).

An algorithm's config model has only the fields that the algorithm uses. `tasks/training` has the
formulas. An algorithm in another package is found by its entry point: see
`tasks/training/ADDING_AN_ALGORITHM.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from configs.config_model import ConfigModel
from configs.registry import Registry

if TYPE_CHECKING:
    from configs.experiment import Experiment


class Algorithm(ConfigModel):
    """Base of all algorithms: how trajectories become policy updates."""

    compares_groups: ClassVar[bool] = False
    """Whether an advantage is relative to the other trajectories of its group.

    The group must then be complete.
    """

    name: str
    """The algorithm.

    RL:

    - grpo (arXiv 2402.03300)
    - rloo (2402.14740)
    - reinforce++ (2501.03262)
    - ppo (1707.06347), with a critic
    - gigpo (2505.10978)
    - distillation (2306.13649): learn from a teacher's log-probabilities on own episodes

    Imitation:

    - sft: behaviour cloning on successes
    - dpo (2305.18290): success preferred over failure of the same task
    - agentevol (2406.04151): explore, keep the successes, clone, repeat

    Any other: the name of an installed package's entry point, or module:Class, e.g.
    mine.tricks:MyGRPO.
    """
    steps: PositiveInt
    """Training steps. Each step collects one batch of groups and updates the policy on it."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly from 0. It stays constant afterwards."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    max_gradient_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm."""
    epochs: PositiveInt = 1
    """Passes over each batch of trajectories."""
    mini_batches: PositiveInt = 1
    """Optimiser updates per epoch. Each mini-batch holds members of every group."""
    micro_batches: PositiveInt | None = None
    """Micro-batches per optimiser update on each process. More of them take less memory.

    Empty: 4, or as many as `micro_batch_tokens` requires.
    """
    micro_batch_tokens: PositiveInt | None = None
    """Token budget of a micro-batch, padding included. It replaces `micro_batches`.

    A longer trajectory forms a micro-batch alone. The number of micro-batches then follows from the
    batch, and each process gets about the same number of tokens.
    """
    on_collapse: Literal["report", "stop", "roll_back"] = "report"
    """What happens when training collapses.

    "report" only reports it. "stop" stops the run. "roll_back" stops the run and deletes the
    checkpoints after the last good step.
    """

    @model_validator(mode="after")
    def _check_micro_batching(self) -> Self:
        if self.micro_batch_tokens is not None and self.micro_batches is not None:
            raise ValueError(
                f"micro_batches ({self.micro_batches}) and micro_batch_tokens "
                f"({self.micro_batch_tokens}) exclude each other; remove one, or set it to null"
            )
        return self

    @property
    def passes(self) -> int:
        """Micro-batches per optimiser update when `micro_batch_tokens` is empty."""
        return self.micro_batches or 4

    @property
    def updates_per_step(self) -> int:
        """Optimiser updates per training step."""
        return self.epochs * self.mini_batches

    def whole_episodes_only(self) -> str | None:
        """Return a setting whose formula needs all tokens of an episode in one row, if any."""
        return None

    def check(self, experiment: Experiment) -> None:
        """Check the algorithm against the rest of the recipe.

        Raises:
            ValueError: The two are incompatible. The message names the fields and the fix.
        """


ALGORITHMS = Registry(
    what="algorithm",
    field="name",
    base=Algorithm,
    built_in={
        "grpo": "configs.policy_gradient:GRPO",
        "rloo": "configs.policy_gradient:RLOO",
        "reinforce++": "configs.policy_gradient:ReinforcePlusPlus",
        "ppo": "configs.policy_gradient:PPO",
        "gigpo": "configs.policy_gradient:GiGPO",
        "distillation": "configs.policy_gradient:Distillation",
        "sft": "configs.imitation:SFT",
        "dpo": "configs.imitation:DPO",
        "agentevol": "configs.imitation:AgentEvol",
    },
    group="agentgym.algorithms",
    default="grpo",
)
"""The config models of `algorithm`."""
