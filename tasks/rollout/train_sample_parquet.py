"""Train samples as parquet: per-token data of the loss, one file per step, one row per trajectory.

The file is `train_samples/step-000012.parquet` in the run's folder, alongside
`rollouts/step-000012.parquet`. Rows are joined by group and member. Each list has one value per
token that the policy wrote, in the order of the turns:

| column | type | content |
|---|---|---|
| group, member | int64 | the trajectory's place in the step |
| advantages | list of float32 | factor of the ratio, with any truncated importance weight |
| loss_mask | list of bool | whether the token was in the loss |
| log_probabilities | list of float32 | under the trainer's weights, in the first pass of the loss |
| entropies | list of float32 | of the trainer's next-token distribution, in nats |

The log-probabilities as sampled are in the trajectory. The last two columns are NaN if the loss
skipped the forward pass of a trajectory because its advantages are all 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.files import replacing

FOLDER = "train_samples"
"""Name of the folder in the run's folder."""


@dataclass(frozen=True, slots=True)
class TrainSampleTokens:
    """One row: a trajectory of `n` policy tokens. Each array has shape (n,)."""

    group: int
    member: int
    advantages: NDArray[np.float32]
    loss_mask: NDArray[np.bool_]
    log_probabilities: NDArray[np.float32]
    entropies: NDArray[np.float32]


def write_train_samples(path: Path, samples: Sequence[TrainSampleTokens]) -> None:
    """Write a step's rows atomically as one file, replacing an existing file of the same name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [
        pa.int64(),
        pa.int64(),
        pa.list_(pa.float32()),
        pa.list_(pa.bool_()),
        pa.list_(pa.float32()),
        pa.list_(pa.float32()),
    ]
    schema = pa.schema(
        [
            pa.field(field.name, kind, nullable=False)
            for field, kind in zip(fields(TrainSampleTokens), kinds, strict=True)
        ]
    )
    table = pa.Table.from_pylist([asdict(sample) for sample in samples], schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd")
