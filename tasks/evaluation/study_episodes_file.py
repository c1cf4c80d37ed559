"""The episodes of a study's evaluations in one small file: actions without tokens and observations.

Any parquet reader opens it. One row is an episode:

| column | type | content |
|---|---|---|
| arm, seed | string, int64 | the run |
| evaluation | string | "start", "phase-1", ..., or "first, CELL" and "last, CELL" of further ones |
| task, member | int64 | task index, and number of the episode of this task |
| outcome, reward | string, float64 | outcome and score |
| actions | list of string | text sent to the environment, empty for a malformed message |
| refused | list of bool | whether the world rejected the action, null if it does not report it |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import replacing
from tasks.rollout.trajectory import Outcome, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

ORDER = ("arm", "seed", "evaluation", "task", "member")


def episode_rows(
    arm: str, seed: int, evaluations: Mapping[str, Sequence[Trajectory]]
) -> list[dict[str, Any]]:
    """Return one row per scored episode of a run.

    Args:
        evaluations: Maps the name of an evaluation to its episodes.
    """
    return [
        {
            "arm": arm,
            "seed": seed,
            "evaluation": name,
            "task": each.task,
            "member": each.member,
            "outcome": str(each.outcome),
            "reward": each.reward,
            "actions": [turn.action for turn in each.turns],
            "refused": [turn.refused for turn in each.turns],
        }
        for name, played in evaluations.items()
        for each in played
        if each.outcome is not Outcome.FAILED
    ]


def write_episodes(
    path: Path, rows: Sequence[Mapping[str, Any]], runs: set[tuple[str, int]]
) -> None:
    """Write the episodes of a study atomically, without a file if there are none.

    Episodes in the file stay if their run is one of `runs` and has no new rows, because its folder
    may be on another machine. The same episodes give the same file.

    Args:
        path: File to write. Its folder exists.
        rows: New rows, see `episode_rows`.
        runs: Arm and seed of each run of the study.
    """
    import pyarrow.parquet as pq

    new = {(row["arm"], row["seed"]) for row in rows}
    old = pq.read_table(path, schema=_schema()).to_pylist() if path.is_file() else []
    kept = [row for row in old if (row["arm"], row["seed"]) in runs - new]
    if every := sorted([*kept, *rows], key=lambda row: [row[name] for name in ORDER]):
        import pyarrow as pa

        table = pa.Table.from_pylist(every, schema=_schema())
        with replacing(path, durable=True) as file:
            pq.write_table(table, file, compression="zstd", compression_level=19)


def _schema() -> pa.Schema:
    import pyarrow as pa  # imported here, so that only code that reads or writes files waits for it

    return pa.schema(
        [
            ("arm", pa.string()),
            ("seed", pa.int64()),
            ("evaluation", pa.string()),
            ("task", pa.int64()),
            ("member", pa.int64()),
            ("outcome", pa.string()),
            ("reward", pa.float64()),
            ("actions", pa.list_(pa.string())),
            ("refused", pa.list_(pa.bool_())),
        ]
    )
