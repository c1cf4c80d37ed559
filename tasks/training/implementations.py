"""The trainer and the batches of each algorithm, by the class of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from configs.algorithm import Algorithm
from configs.imitation import DPO, Imitation
from configs.policy_gradient import PolicyGradient
from tasks.training.algorithms.table import implementation

if TYPE_CHECKING:
    from tasks.training.base_trainer import BaseTrainer
    from tasks.training.train_loop import BatchSource


def _importing(target: str) -> Callable[[Algorithm], Any]:
    """Return a function that imports a class. Each class imports another part of TRL."""
    return lambda _: resolve_name(target)


def _policy_gradient_batches(algorithm: Algorithm) -> Any:
    assert isinstance(algorithm, PolicyGradient)
    if algorithm.trajectories is None:
        return resolve_name("tasks.training.rollout_batches:RolloutBatches")
    return resolve_name("tasks.training.recorded_groups:RecordedGroups")


TRAINERS: Mapping[type[Algorithm], Callable[[Algorithm], type[BaseTrainer]]] = {
    PolicyGradient: _importing("tasks.training.policy_gradient_trainer:PolicyGradientTrainer"),
    Imitation: _importing("tasks.training.imitation_trainers:CloningTrainer"),
    DPO: _importing("tasks.training.imitation_trainers:PreferenceTrainer"),
}

BATCHES: Mapping[type[Algorithm], Callable[[Algorithm], Callable[..., BatchSource]]] = {
    PolicyGradient: _policy_gradient_batches,
    Imitation: _importing("tasks.training.offline_batches:OfflineBatches"),
}


def trainer_class(algorithm: Algorithm) -> type[BaseTrainer]:
    """Return the class that updates the policy. Another package defines it by `trainer`."""
    return implementation(algorithm, "trainer", TRAINERS)(algorithm)


def batches_class(algorithm: Algorithm) -> Callable[..., BatchSource]:
    """Return the class that supplies trajectories. Another package defines it by `batches`."""
    return implementation(algorithm, "batches", BATCHES)(algorithm)
