"""Fields that every learning method shares, and the registry of methods (`ALGORITHMS`).

A method is one file and one line of `ALGORITHMS`. Its file holds its configuration, with only the
fields that it uses, and its formulas. See `tasks/training/ADDING_AN_ALGORITHM.md`. Importing a
method loads no torch, so recipes can be checked on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from configs.kinds import Kinds
from configs.part import Part

if TYPE_CHECKING:
    from configs.experiment import Experiment


class Algorithm(Part):
    """Base configuration of every learning method: how trajectories become policy updates."""

    compares_groups: ClassVar[bool] = False
    """Whether an advantage is relative to the other trajectories of its group.

    The group must then be complete.
    """

    name: str
    """The learning method.

    RL methods:

    - grpo (arXiv 2402.03300)
    - rloo (2402.14740)
    - reinforce++ (2501.03262)
    - ppo (1707.06347), with a critic
    - gigpo (2505.10978)

    Imitation methods:

    - sft: behaviour cloning on successes
    - dpo (2305.18290): success preferred over failure of the same task
    - agentevol (2406.04151): explore, keep the successes, clone, repeat

    Any other method: its module and class, e.g. mine.tricks:MyGRPO.
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
    def _one_way_to_cut(self) -> Self:
        if self.micro_batch_tokens is not None and self.micro_batches is not None:
            raise ValueError(
                f"micro_batches ({self.micro_batches}) and micro_batch_tokens ({self.micro_batch_tokens}) both say how a batch is cut; "
                "leave one out (or set it to null)"
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

    def check(self, experiment: Experiment) -> None:
        """Check the method against the rest of the recipe.

        Raises:
            ValueError: The two are incompatible. The message names the fields and the fix.
        """

    def trainer(self) -> type[Any]:
        """Return the `BaseTrainer` class of `tasks.training` that performs the updates."""
        raise NotImplementedError

    def batches(self) -> type[Any]:
        """Return the `BatchSource` class of `tasks.training` that supplies trajectories."""
        raise NotImplementedError


ALGORITHMS = Kinds(
    "algorithm",
    "name",
    Algorithm,
    {
        "grpo": "tasks.training.algorithms.grpo:GRPO",
        "rloo": "tasks.training.algorithms.rloo:RLOO",
        "reinforce++": "tasks.training.algorithms.reinforce_plus_plus:ReinforcePlusPlus",
        "ppo": "tasks.training.algorithms.ppo:PPO",
        "gigpo": "tasks.training.algorithms.gigpo:GiGPO",
        "sft": "tasks.training.algorithms.sft:SFT",
        "dpo": "tasks.training.algorithms.dpo:DPO",
        "agentevol": "tasks.training.algorithms.agentevol:AgentEvol",
    },
    default="grpo",
)
"""Name in a recipe -> "module:Class". A recipe may also give any `module:Class` itself."""
