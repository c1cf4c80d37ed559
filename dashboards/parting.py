"""The same task played several times: the first turn at which two trajectories part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.index import Index
from dashboards.trajectory import Address, Shown, shown


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory of a task, beside the one before it in the list.

    Attributes:
        trajectory: What happened.
        parts_at: The first turn, from 0, whose action differs from that of the attempt before; None for the first, or if none does.
    """

    trajectory: Shown
    parts_at: int | None


def attempts_at(index: Index, environment: str, task: int, runs: Sequence[str] = (), most: int = 24) -> list[Attempt]:
    """The first sample of a task in each evaluation, in the order of training; of some runs, or of all."""
    rows = index.query(
        """select run, kind, name, "group", min(member) as member, min(policy_version) as version from trajectories
        where environment = ? and task = ? and kind = 'evaluations' and outcome <> 'failed'
        and (run in (select unnest(?::varchar[])) or len(?::varchar[]) = 0)
        group by run, kind, name, "group" order by run, version limit ?""",
        [environment, task, list(runs), list(runs), most],
    )
    played = [shown(index, Address(row["run"], row["kind"], row["name"], row["group"], row["member"])) for row in rows]
    there = [each for each in played if each is not None]
    return [Attempt(each, parting(there[number - 1], each) if number else None) for number, each in enumerate(there)]


def parting(first: Shown, second: Shown) -> int | None:
    """The first turn, from 0, at which two trajectories do something else; None if they do the same to the end."""
    ours, theirs = [[turn.action or turn.message for turn in each.turns] for each in (first, second)]
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return number
    return min(len(ours), len(theirs)) if len(ours) != len(theirs) else None
