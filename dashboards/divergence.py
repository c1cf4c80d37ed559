"""Compare several attempts at one task.

Finds the first turn at which two trajectories diverge, and at which one diverges from all
successful ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.index import Index
from dashboards.trajectory import Address, TrajectoryView, load_trajectory


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory of a task, compared with the previous one in the list.

    Attributes:
        trajectory: The requested sample, or else the first success, or else the first sample.
        samples: Member, outcome and reward of all samples of the task in that evaluation.
        requested: Whether this sample was requested.
        diverges_at: First turn, from 0, whose action differs from the previous attempt. None for
            the first attempt or if the actions are equal.
    """

    trajectory: TrajectoryView
    samples: list[dict[str, Any]]
    requested: bool
    diverges_at: int | None

    @property
    def succeeded(self) -> int:
        """Number of successful samples."""
        return sum(sample["outcome"] == "success" for sample in self.samples)


def attempts_of_task(
    index: Index,
    environment: str,
    task: int,
    runs: Sequence[str] = (),
    sample: str = "",
    most: int = 24,
) -> list[Attempt]:
    """Return one sample of a task from each evaluation, in order of training.

    Args:
        index: Index of the trajectories.
        runs: Names of runs. Empty means all runs.
        sample: A requested sample, e.g. "phase-1/3" (evaluation and member). Empty means none.
        most: Maximum number of evaluations.
    """
    rows = index.query(
        """select run, kind, name, "group", coalesce(min(member) filter (succeeded), min(member)) as member,
        min(policy_version) as version, list({'member': member, 'outcome': outcome, 'reward': reward} order by member) as samples
        from trajectories
        where environment = ? and task = ? and kind = 'evaluations' and outcome <> 'failed'
        and (run in (select unnest(?::varchar[])) or len(?::varchar[]) = 0)
        group by run, kind, name, "group" order by run, version limit ?""",
        [environment, task, list(runs), list(runs), most],
    )
    name, _, member = sample.partition("/")
    for row in rows:
        row["requested"] = row["name"] == name and any(
            str(each["member"]) == member for each in row["samples"]
        )
        if row["requested"]:
            row["member"] = int(member)
    played = [
        (
            load_trajectory(
                index, Address(row["run"], row["kind"], row["name"], row["group"], row["member"])
            ),
            row,
        )
        for row in rows
    ]
    there = [(each, row) for each, row in played if each is not None]
    return [
        Attempt(
            each,
            row["samples"],
            row["requested"],
            first_difference(there[n - 1][0], each) if n else None,
        )
        for n, (each, row) in enumerate(there)
    ]


def first_difference(first: TrajectoryView, second: TrajectoryView) -> int | None:
    """Return the first turn, from 0, at which two trajectories diverge. None if they are equal."""
    ours, theirs = [
        [turn.action or turn.message for turn in each.turns] for each in (first, second)
    ]
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return number
    return min(len(ours), len(theirs)) if len(ours) != len(theirs) else None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The turn at which a trajectory diverges from all compared successes of its task.

    Attributes:
        turn: First turn, from 0, that it shares with none of them. Equal to its number of turns if
            it only ended too early.
        successes: Number of compared trajectories.
        nearest: The success that it follows longest.
    """

    turn: int
    successes: int
    nearest: Address


SUCCESSES = """
select t.run, t.kind, t.name, t."group", t.member, files.path, t.row
from trajectories t join files on t.file = files.id
where t.environment = ? and t.task = ? and t.succeeded
order by t.run <> ?, t.policy_version desc, t.turns limit 48
"""


def divergence_of(index: Index, found: TrajectoryView) -> Divergence | None:
    """Compare a failed trajectory with at most 48 recorded successes of its task.

    Those of its own run come first. None if there are no successes.
    """
    rows = index.query(SUCCESSES, [found.row["environment"], found.row["task"], found.address.run])
    by_file: dict[str, dict[int, Address]] = {}
    for row in rows:
        address = Address(row["run"], row["kind"], row["name"], row["group"], row["member"])
        by_file.setdefault(row["path"], {})[row["row"]] = address
    ours = [turn.action or turn.message for turn in found.turns]
    shared: list[tuple[int, Address]] = []
    for path, wanted in by_file.items():
        played = index.query(ACTIONS, [path, list(wanted)])
        shared += [(_common_prefix(ours, row["actions"]), wanted[row["row"]]) for row in played]
    if not shared:
        return None
    longest = max(length for length, _ in shared)
    return Divergence(
        longest, len(shared), next(address for length, address in shared if length == longest)
    )


ACTIONS = """
select file_row_number as row, list_transform(turns, lambda t: case when t.action = '' then t.message else t.action end) as actions
from read_parquet(?, file_row_number = true) where file_row_number in (select unnest(?))
"""


def _common_prefix(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the length of the common prefix of two lists of actions."""
    return next(
        (n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
        min(len(ours), len(theirs)),
    )
