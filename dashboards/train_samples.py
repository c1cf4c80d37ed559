"""Read the token-level training data of a trajectory.

`tasks.rollout.train_sample_parquet` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from dashboards.index import Index
from tasks.rollout.train_sample_parquet import FOLDER

READ = 'select advantages, loss_mask, log_probabilities, entropies from read_parquet(?) where "group" = ? and member = ?'


@dataclass(frozen=True, slots=True)
class TrainedToken:
    """One policy token in the loss.

    Attributes:
        advantage: Advantage of the token, the factor of its probability ratio in the loss.
        in_loss: Whether the token counts in the loss.
        log_probability: Log-probability under the trainer's weights. None without a forward pass.
        entropy: Entropy of the trainer's distribution, in nats. None without a forward pass.
    """

    advantage: float
    in_loss: bool
    log_probability: float | None
    entropy: float | None


def train_samples_of(rollouts: Path) -> Path | None:
    """Return the training data for a file of trajectories. None if it does not exist."""
    path = rollouts.parent.parent / FOLDER / rollouts.name
    return path if rollouts.parent.name == "rollouts" and path.is_file() else None


def trained_tokens(index: Index, rollouts: Path, group: int, member: int) -> list[TrainedToken]:
    """Return the policy tokens of one trajectory in order. Empty without training data.

    Args:
        index: Reads parquet.
        rollouts: File of the step's trajectories.
        member: Index within the group.
    """
    path = train_samples_of(rollouts)
    if path is None:
        return []
    try:
        rows = index.query(READ, [str(path), group, member])
    except duckdb.Error:  # damaged: the trajectory is shown without it
        return []
    if not rows:
        return []
    columns = [
        rows[0][name] for name in ("advantages", "loss_mask", "log_probabilities", "entropies")
    ]
    return [
        TrainedToken(a, bool(m), _known(p), _known(e)) for a, m, p, e in zip(*columns, strict=True)
    ]


def _known(value: float) -> float | None:
    return value if value == value else None
