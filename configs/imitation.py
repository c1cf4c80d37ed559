"""Configuration of the imitation algorithms.

They train on trajectories that are recorded, or that an earlier policy explored.
`tasks/training/algorithms` has the selection of trajectories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from configs.algorithm import Algorithm

if TYPE_CHECKING:
    from configs.experiment import Experiment


class Imitation(Algorithm):
    """Base of the imitation algorithms: explore periodically, and train on a selection.

    The selection is all successes. A subclass in another package can select others in a method
    `batch(self, pool, step, size, seed)`.
    """

    unit: ClassVar[int] = 1
    """Number of trajectories that belong together: 2 for pairs."""

    explore_groups: PositiveInt = 64
    """Groups per exploration, each of rollout.group_size episodes."""

    trajectories: str | None = None
    """Parquet file, or folder of such files (the `rollouts` of another run, or a recording of
    `agentgym serve`), with trajectories of the same tokenizer. They replace the first exploration.
    If empty, the initial policy explores."""

    def explorations(self, step: int) -> int:
        """Return the number of explorations that a training step (from 0) uses."""
        return 1

    def restarts(self, step: int) -> bool:
        """Whether the policy is reset to the initial one before this step (from 0)."""
        return False

    def check(self, experiment: Experiment) -> None:
        """Check the algorithm against the rest of the recipe. Implements `Algorithm.check`."""
        rollout = experiment.rollout
        for name, value, off in (
            ("update_in_flight", rollout.update_in_flight, "false"),
            ("stream", rollout.stream, "false"),
            ("max_off_policy_steps", rollout.max_off_policy_steps, "0"),
        ):
            if value:
                raise ValueError(
                    f"rollout.{name} ({value}) is not supported by algorithm.name {self.name}; set "
                    f"it to {off}"
                )
        if experiment.curriculum.looks_back:
            raise ValueError(
                f"curriculum.kind ({experiment.curriculum.kind}) needs episodes in every step, but "
                f"algorithm.name {self.name} explores only in some steps; set curriculum.kind to "
                "another schedule, e.g. stepwise"
            )


class SFT(Imitation):
    """Behaviour cloning of successes. The loss is in `CloningTrainer`."""


class DPO(SFT):
    """Trains on pairs of trajectories. The loss is in `PreferenceTrainer`."""

    unit: ClassVar[int] = 2

    beta: PositiveFloat = 0.1
    """Strength of the constraint to the initial policy (arXiv 2305.18290)."""
    cloning_weight: NonNegativeFloat = 0.0
    """Weight of sft's loss on the successes, which is added (arXiv 2404.19733, equation 2, with
    1). Preferences alone may make both trajectories of a pair less likely."""

    def whole_episodes_only(self) -> str | None:
        """Return the algorithm's name. Implements `Algorithm.whole_episodes_only`."""
        return f"name: {self.name}"


class AgentEvol(Imitation):
    """Clones the policy's own successes from all explorations so far."""

    explore_every: PositiveInt = 10
    """Training steps between two explorations. The successes of all explorations are kept."""
    restart_from_base: bool = False
    """Whether each exploration is followed by training from the initial policy on all successes
    so far, as in the paper's script. Otherwise training continues from the current policy. A
    restart also repeats the learning rate warm-up."""

    def explorations(self, step: int) -> int:
        """Return the number of explorations that a training step (from 0) uses."""
        return step // self.explore_every + 1

    def restarts(self, step: int) -> bool:
        """Whether the policy restarts before this step. Implements `Imitation.restarts`."""
        return self.restart_from_base and step > 0 and step % self.explore_every == 0
