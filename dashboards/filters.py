"""Filters for lists of trajectories: from an address's query string to SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from dashboards.index import Index

MAX_NUMBER = 10**15
"""Largest absolute value of a number in an address. DuckDB integers can hold it, also times PAGE.
"""
PAGE = 50
"""Rows per page of a list."""
ORDERS = {
    "": 'run, kind, step, name, "group", member',
    "turns": "turns, file, row",
    "-turns": "turns desc, file, row",
    "reward": "reward, file, row",
    "-reward": "reward desc, file, row",
    "-step": "step desc, file, row",
}
SUCCESS = {"": "", "yes": "succeeded", "no": "not succeeded and outcome <> 'failed'"}
"""SQL conditions of the filter by success."""
ROW = (
    'run, kind, name, step, temperature, environment, task, tag, "group", member, horizon, '
    "policy_version, engine, outcome, reason, "
    "attempts, seconds, reward, succeeded, turns, tokens, malformed, refused"
)


class FilterError(ValueError):
    """A field of an address or a form has an invalid value."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


def whole_number(word: str, name: str, low: int = 0, high: int = MAX_NUMBER) -> int:
    """Parse an integer from an address or a form.

    Raises:
        FilterError: It is not an integer from `low` to `high`.
    """
    digits = word.removeprefix("-")
    if (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= len(str(MAX_NUMBER))
        and low <= int(word) <= high
    ):
        return int(word)
    raise FilterError(name, f"must be an integer from {low} to {high}, not {_shortened(word)}")


def real_number(word: str, name: str, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> float:
    """Parse a number from an address or a form.

    Raises:
        FilterError: It is not a number from `low` to `high`.
    """
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise FilterError(
            name, f"must be a number from {low:g} to {high:g}, not {_shortened(word)}"
        )
    return value


def _shortened(word: str) -> str:
    return repr(word if len(word) <= 40 else f"{word[:40]}...")


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a list. Empty filters have no effect.

    Attributes:
        run: Name of a run or collection.
        kind: "rollouts", "evaluations" or "collected".
        name: A file, e.g. "phase-1".
        outcome: success, finished, truncated or failed.
        success: "yes" or "no". Failed episodes match neither, since their result is unknown.
        reason: Cause of a truncation or failure, e.g. "horizon".
        tag: Kind of task, e.g. "depth 2".
        horizon: Turn limit of the episode.
        step_from, step_to: Range of training steps, inclusive.
        turns_from, turns_to: Range of the number of turns, inclusive.
        refused_from, refused_to: Range of the number of turns with a refused action, inclusive.
        reward_from, reward_to: Range of rewards, inclusive.
        temperature: Sampling temperature.
        text: Text in any observation or message, case-insensitive.
        order: A key of ORDERS.
        page: Page number, from 1.
    """

    run: str = ""
    kind: str = ""
    name: str = ""
    environment: str = ""
    outcome: str = ""
    success: str = ""
    reason: str = ""
    tag: str = ""
    task: int | None = None
    horizon: int | None = None
    step_from: int | None = None
    step_to: int | None = None
    turns_from: int | None = None
    turns_to: int | None = None
    refused_from: int | None = None
    refused_to: int | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    temperature: float | None = None
    text: str = ""
    order: str = ""
    page: int = 1

    @classmethod
    def parse(cls, words: Mapping[str, str]) -> Filters:
        """Parse the filters of an address. Unknown keys are ignored.

        Raises:
            FilterError: A number is invalid or out of range, or a word is unknown.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            word = words.get(field.name, "").strip()
            if not word:
                continue
            if field.type == "str":
                values[field.name] = word
                continue
            number = whole_number if str(field.type).startswith("int") else real_number
            values[field.name] = number(
                word, field.name, 1 if field.name == "page" else -MAX_NUMBER
            )
        found = cls(**values)
        for name, known in (("order", ORDERS), ("success", SUCCESS)):
            if (word := getattr(found, name)) not in known:
                raise FilterError(
                    name, f"must be one of {', '.join(filter(None, known))}, not {_shortened(word)}"
                )
        return found

    def query_string(self, **changes: Any) -> str:
        """Return the query string with some filters changed.

        The page is reset to the first unless it is among the changes.
        """
        given = (
            {field.name: getattr(self, field.name) for field in fields(self)}
            | {"page": 1}
            | changes
        )
        return urlencode(
            {
                name: value
                for name, value in given.items()
                if value not in ("", None) and (name, value) != ("page", 1)
            }
        )

    def condition(self) -> tuple[str, list[Any]]:
        """Return the SQL condition over `trajectories left join tags` and its values."""
        parts: list[str] = [SUCCESS[self.success]] if self.success else []
        values: list[Any] = []
        for name in (
            "run",
            "kind",
            "name",
            "environment",
            "outcome",
            "reason",
            "tag",
            "task",
            "horizon",
            "temperature",
        ):
            if (value := getattr(self, name)) not in ("", None):
                parts.append(f"{name} = ?")
                values.append(value)
        for column in ("step", "turns", "refused", "reward"):
            for bound, sign in (("from", ">="), ("to", "<=")):
                if (value := getattr(self, f"{column}_{bound}")) is not None:
                    parts.append(f"{column} {sign} ?")
                    values.append(value)
        if self.text:
            parts.append("contains(texts, ?)")
            values.append(self.text.lower())
        return " and ".join(parts) or "true", values


BOUNDS = "avg(succeeded::int) as low, avg((succeeded or outcome = 'failed')::int) as high"
"""SQL for the lower and upper bound of the success rate.

Episodes with infrastructure failures count as failures in the lower and as successes in the upper
bound. Without them the bounds are equal.
"""


@dataclass(frozen=True, slots=True)
class TrajectoryPage:
    """One page of a list.

    Attributes:
        rows: Trajectories of the page, without their texts.
        count: Number of trajectories that match the filters.
        low: Success rate if all episodes with infrastructure failures count as failed. None without
            episodes.
        high: Success rate if all these episodes count as successes.
    """

    rows: list[dict[str, Any]]
    count: int
    low: float | None
    high: float | None


def list_trajectories(index: Index, filters: Filters, size: int = PAGE) -> TrajectoryPage:
    """Return the requested page of the filtered list."""
    where, values = filters.condition()
    joined = "trajectories left join tags using (environment, task)"
    # Texts are searched only once. The rows on the page are then fetched by file and row.
    hits = f"with hits as materialized (select t.file, t.row from (select * from {joined}) t where {where})"
    (totals,) = index.query(
        f"{hits} select count(*) as n, {BOUNDS} from hits join trajectories using (file, row)",
        values,
    )
    rows = index.query(
        f"{hits} select {ROW} from hits join trajectories using (file, row) left join tags using "
        "(environment, task) "
        f"order by {ORDERS[filters.order]} limit {size} offset {(filters.page - 1) * size}",
        values,
    )
    return TrajectoryPage(rows, totals["n"], totals["low"], totals["high"])


def choices(index: Index, run: str = "") -> dict[str, list[Any]]:
    """Return the values of each filter that occur, optionally in one run."""
    found = {}
    for column in ("run", "kind", "name", "environment", "outcome", "reason", "temperature", "tag"):
        table = "tags" if column == "tag" else "trajectories"
        where = "run = ?" if run and table == "trajectories" and column != "run" else "true"
        rows = index.query(
            f"select distinct {column} as value from {table} where {where} and {column} is not "
            "null order by 1 limit 200",
            [run] if where != "true" else [],
        )
        found[column] = [row["value"] for row in rows if row["value"] != ""]
    return found
