"""What a training step learned from, token by token, as parquet: one file a step, one row a trajectory that the loss saw.

The file lies in the run's folder as `train_samples/step-000012.parquet`, beside `rollouts/step-000012.parquet`; rows are joined by group
and member. Each list has one value for each token that the policy wrote, in order, turn after turn:

| column | type | what it holds |
|---|---|---|
| group, member | int64 | which trajectory of the step |
| advantages | list of float32 | what the loss multiplied the token's ratio with, a truncated importance weight included |
| loss_mask | list of bool | whether the token was in the loss |
| log_probabilities | list of float32 | under the trainer's weights, in the first pass of the loss; those as sampled are in the trajectory |
| entropies | list of float32 | of the trainer's distribution over the next token, in nats |

The last two are NaN where the loss left a trajectory out of its forward pass, because its advantages are all 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = "train_samples"
"""Below the folder of a run."""


@dataclass(frozen=True, slots=True)
class TrainSampleTokens:
    """One row: a trajectory of `n` policy tokens. Each array has the shape (n,)."""

    group: int
    member: int
    advantages: NDArray[np.float32]
    loss_mask: NDArray[np.bool_]
    log_probabilities: NDArray[np.float32]
    entropies: NDArray[np.float32]


def write_train_samples(path: Path, samples: Sequence[TrainSampleTokens]) -> None:
    """Writes a step's rows as one file; it appears whole or not at all, and replaces an older one of the same name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [pa.int64(), pa.int64(), pa.list_(pa.float32()), pa.list_(pa.bool_()), pa.list_(pa.float32()), pa.list_(pa.float32())]
    schema = pa.schema([pa.field(field.name, kind, nullable=False) for field, kind in zip(fields(TrainSampleTokens), kinds, strict=True)])
    columns = list(zip(*map(astuple, samples), strict=True)) or [()] * len(kinds)
    table = pa.Table.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, unfinished, compression="zstd")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
