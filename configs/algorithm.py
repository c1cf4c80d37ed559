"""What every learning method has, and where the methods are found: each is one file and one line of `ALGORITHMS`.

A method's file holds its configuration, which has only the fields that the method uses, beside its formulas; see
`tasks/training/ADDING_AN_ALGORITHM.md`. Importing it loads no torch, so that recipes can be checked anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from configs.kinds import Kinds
from configs.part import Part

if TYPE_CHECKING:
    from configs.experiment import Experiment


class Algorithm(Part):
    """How trajectories become updates of the policy: what every method has."""

    compares_groups: ClassVar[bool] = False
    """Whether an advantage is relative to the other trajectories of its group, which must then be complete."""

    name: str
    """The method. By reinforcement: grpo (arXiv 2402.03300), rloo (2402.14740), reinforce++ (2501.03262), ppo (1707.06347, with a
    critic), gigpo (2505.10978). By imitation: sft (clone successes), dpo (2305.18290; success over failure of the same task), agentevol
    (2406.04151; explore, keep what succeeded, clone, repeat). Or the module and class of another one, e.g. mine.tricks:MyGRPO."""
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
    micro_batches: PositiveInt | None = None
    """Forward-backward passes per optimiser update on each process: more of them take less memory. Empty: 4, or as many as
    `micro_batch_tokens` asks for."""
    micro_batch_tokens: PositiveInt | None = None
    """In place of `micro_batches`: most tokens of a pass, padding included (a longer trajectory goes alone). There are then as many
    passes as the batch needs, and trajectories are dealt out so that each process has about as many tokens."""
    on_collapse: Literal["report", "stop", "roll_back"] = "report"
    """What follows when training collapses: only a report; the run stops; or it stops and the checkpoints since the last good step go."""

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
        """Forward-backward passes per optimiser update, where `micro_batch_tokens` does not say how many."""
        return self.micro_batches or 4

    @property
    def updates_per_step(self) -> int:
        """Optimiser updates of a training step."""
        return self.epochs * self.mini_batches

    def check(self, experiment: Experiment) -> None:
        """Compares the method with the rest of the recipe.

        Raises:
            ValueError: They do not go together; the message names the fields and the fix.
        """

    def trainer(self) -> type[Any]:
        """The class of `tasks.training` that makes updates by this method, a `BaseTrainer`."""
        raise NotImplementedError

    def batches(self) -> type[Any]:
        """The class of `tasks.training` that supplies each step's trajectories, a `BatchSource`."""
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
"""Name in a recipe -> module and class. A recipe may also name any `module:Class` itself."""
