"""What the loss of a training step read of a trajectory, token by token, as `tasks.rollout.train_sample_parquet` left it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from dashboards.index import Index
from tasks.rollout.train_sample_parquet import FOLDER

READ = 'select advantages, loss_mask, log_probabilities, entropies from read_parquet(?) where "group" = ? and member = ?'


@dataclass(frozen=True, slots=True)
class LearnedToken:
    """One token of the policy in the loss.

    Attributes:
        advantage: What the loss multiplied its ratio with.
        in_loss: Whether the loss counted it.
        log_probability: Under the trainer's weights; None where no forward pass was made of it.
        entropy: Of the trainer's distribution, in nats; None likewise.
    """

    advantage: float
    in_loss: bool
    log_probability: float | None
    entropy: float | None


def record_of(rollouts: Path) -> Path | None:
    """The record that belongs to a file of a training step's trajectories; None where there is none."""
    path = rollouts.parent.parent / FOLDER / rollouts.name
    return path if rollouts.parent.name == "rollouts" and path.is_file() else None


def learned_tokens(index: Index, rollouts: Path, group: int, member: int) -> list[LearnedToken]:
    """The policy's tokens of one trajectory in order; empty where its step left no record of it.

    Args:
        index: Reads parquet.
        rollouts: The file of the step's trajectories.
        group: Its group.
        member: Its place there.
    """
    path = record_of(rollouts)
    if path is None:
        return []
    try:
        rows = index.query(READ, [str(path), group, member])
    except duckdb.Error:  # damaged: the trajectory is shown all the same
        return []
    if not rows:
        return []
    columns = [rows[0][name] for name in ("advantages", "loss_mask", "log_probabilities", "entropies")]
    return [LearnedToken(a, bool(m), _known(p), _known(e)) for a, m, p, e in zip(*columns, strict=True)]


def _known(value: float) -> float | None:
    return value if value == value else None
