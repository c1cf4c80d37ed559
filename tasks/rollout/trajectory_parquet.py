"""Trajectories as parquet: one file per batch, one row per trajectory.

Any parquet reader opens the files (`pandas.read_parquet`, or duckdb's `select * from
'runs/**/*.parquet'`). The columns:

| column | type | content |
|---|---|---|
| environment, task | string, int64 | world and task index |
| group, member | int64 | index of the group in the batch, index within the group |
| seed, horizon, policy_version | int64 | sampling seed, turn limit, training step of the weights |
| engine | string | engine or agent that generated it |
| prompt | list of int32 | token ids before the first turn |
| first_observation | string | text of the environment's first observation |
| turns | list of struct | fields of `trajectory.Turn` per turn, log-probabilities as float64 |
| outcome, reason | string | outcome, and what cut or broke the episode |
| attempts | int64 | number of attempts |
| seconds, began | float64 | wall time of the last attempt, its start in seconds since 1970 |
| reward, succeeded, n_turns | float64, bool, int64 | derived, for analysis; not read back |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import replacing
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

if TYPE_CHECKING:
    import pyarrow as pa


class TrajectoryFileError(Exception):
    """A trajectory file could not be written or read. The message names the file and the reason."""


@cache
def schema() -> pa.Schema:
    """Return the columns of a file, in order."""
    import pyarrow as pa  # imported here, so that only code that reads or writes files waits for it

    kinds = {
        "bool": pa.bool_(),
        "bool | None": pa.bool_(),
        "float": pa.float64(),
        "int": pa.int64(),
        "list[float]": pa.list_(pa.float64()),
        "list[int]": pa.list_(pa.int32()),  # token ids
        "Outcome": pa.string(),
        "str": pa.string(),
    }
    kinds["list[Turn]"] = pa.list_(pa.struct([(f.name, kinds[str(f.type)]) for f in fields(Turn)]))
    columns = [(field.name, kinds[str(field.type)]) for field in fields(Trajectory)]
    columns += [("reward", kinds["float"]), ("succeeded", kinds["bool"]), ("n_turns", kinds["int"])]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write a batch atomically as one file, replacing an existing file of the same name.

    Args:
        path: File to write. Its folder is created if missing.
        trajectories: The batch, of any length, including failed episodes.

    Raises:
        TrajectoryFileError: A value does not fit its column, e.g. a seed above 2**63 - 1.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for field in schema():
        try:
            columns[field.name] = pa.array(_column(trajectories, field.name), field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise TrajectoryFileError(
                f"cannot write {path}: a value of column {field.name} does not fit type "
                f"{field.type}: {error}"
            ) from error
    table = pa.Table.from_arrays(list(columns.values()), schema=schema())
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=True) as file:
        pq.write_table(table, file, compression="zstd")


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read the trajectories of a file, equal to the written ones.

    Raises:
        FileNotFoundError: The file does not exist.
        TrajectoryFileError: The file is not parquet, or its columns differ from `schema()`.
    """
    trajectories = []
    for row in read_table(path).select([field.name for field in fields(Trajectory)]).to_pylist():
        row["turns"] = [Turn(**turn) for turn in row["turns"]]
        row["outcome"] = Outcome(row["outcome"])
        trajectories.append(Trajectory(**row))
    return trajectories


def read_table(path: Path) -> pa.Table:
    """Read the rows of a file. Raises as `read_trajectories` does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise TrajectoryFileError(f"{path} is not a readable parquet file: {error}") from error
    if not table.schema.equals(schema()):
        raise TrajectoryFileError(
            f"{path} is not a trajectory file of this version: {_difference(table.schema)}"
        )
    return table


def _column(trajectories: Sequence[Trajectory], name: str) -> list[Any]:
    if name == "n_turns":
        return [len(each.turns) for each in trajectories]
    if name == "turns":
        names = [field.name for field in fields(Turn)]
        return [
            [{name: getattr(turn, name) for name in names} for turn in each.turns]
            for each in trajectories
        ]
    return [getattr(each, name) for each in trajectories]


def _difference(found: pa.Schema) -> str:
    expected = {field.name: field.type for field in schema()}
    actual = {field.name: field.type for field in found}
    parts = [f"column {name} is missing" for name in expected if name not in actual]
    parts += [f"column {name} is unknown" for name in actual if name not in expected]
    parts += [
        f"column {name} is {actual[name]}, not {kind}"
        for name, kind in expected.items()
        if actual.get(name, kind) != kind
    ]
    return "; ".join(parts) or "the order or nullability of the columns differs"
