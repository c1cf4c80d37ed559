"""Nightly training as champion and challenger: results, promotion, and the history as a table.

A challenger becomes the champion only if the 95 % interval of the paired difference of their
success lies above zero. A lucky night does not replace a policy that is equally good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, TypeAdapter

from tasks.evaluation.report import change, share
from tasks.evaluation.statistics import UNKNOWN, Estimate
from tasks.files import replace_file

Verdict = Literal[
    "begun", "failed", "collapsed", "first", "better", "not better", "champion missing"
]

WORDS: dict[Verdict, str] = {
    "begun": "not finished",
    "failed": "failed",
    "collapsed": "no challenger",
    "first": "**new champion**: the first one",
    "better": "**new champion**: significantly better",
    "not better": "champion kept: challenger not significantly better",
    "champion missing": "not compared: the champion's weights are missing",
}
"""Text of each verdict in the table."""


@dataclass(frozen=True, slots=True)
class Night:
    """One night.

    Attributes:
        date: Its date, e.g. "2026-11-22".
        seed: Seed of training and evaluation, derived from the date.
        champion: Folder of the checkpoint that the challenger is compared with: the champion at the
            time of the verdict, before that the one at the night's first start. Empty if there was
            none.
        challenger: Folder of the checkpoint trained in the night. Empty until it is measured, and
            if training collapsed without a checkpoint to compare.
        verdict: Result of the night.
        challenger_success: Held-out success of the challenger.
        champion_success: Held-out success of the champion on the same tasks with the same seeds.
        difference: Challenger's success minus the champion's, paired by task.
        missed: Earlier scheduled dates on which no night began.
        said: Reason of a failure or a collapse, in one line.
        champion_at_start: Folder of the champion's checkpoint at the night's first start. A
            challenger that starts from the champion starts from it, also when the night continues.
        promoted_at: Time of the promotion, in seconds since 1970. 0 without a promotion.
        decided: Whether the verdict is final and recorded. The night is then not judged again.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    date: Annotated[str, AfterValidator(lambda text: date.fromisoformat(text).isoformat())]
    seed: int
    champion: str = ""
    challenger: str = ""
    verdict: Verdict = "begun"
    challenger_success: Estimate = UNKNOWN
    champion_success: Estimate = UNKNOWN
    difference: Estimate = UNKNOWN
    missed: tuple[str, ...] = ()
    said: str = ""
    champion_at_start: str = ""
    promoted_at: float = 0.0
    decided: bool = False

    @property
    def promoted(self) -> bool:
        """Whether its challenger became the champion."""
        return self.verdict in ("first", "better")


_NIGHTS = TypeAdapter(Night)


def seed_of(night: date) -> int:
    """Return the seed of a night, e.g. 20261122.

    Each night has another seed, and a repeated night has the same one.
    """
    return int(night.strftime("%Y%m%d"))


def is_better(difference: Estimate) -> bool:
    """Return whether the whole 95 % interval of a difference lies above zero.

    Without an interval the answer is False.
    """
    return difference.low > 0  # False for nan


def missed_nights(nights: Sequence[Night], due: Iterable[date], tonight: date) -> tuple[str, ...]:
    """Return the dates between the last night and tonight on which a night was due."""
    if not nights:
        return ()
    last = date.fromisoformat(nights[-1].date)
    return tuple(day.isoformat() for day in due if last < day < tonight)


def write_night(folder: Path, night: Night) -> None:
    """Write a night atomically to its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(
        folder / f"{night.date}.json", _NIGHTS.dump_json(night, indent=1).decode(), durable=True
    )


def read_nights(folder: Path) -> tuple[list[Night], list[str]]:
    """Read the nights of a folder in the order of their dates.

    Returns:
        The nights, and one line about each unreadable file.
    """
    nights, damaged = [], []
    for path in sorted(folder.glob("????-??-??.json")):
        try:
            nights.append(_NIGHTS.validate_json(path.read_bytes()))
        except (ValueError, OSError) as problem:
            damaged.append(
                f"{path} is not a valid night file ({problem}) and is ignored. Repair or delete it."
            )
    return nights, damaged


def last_champion(nights: Sequence[Night]) -> str:
    """Return the checkpoint that was promoted last, whatever its date. Empty if none was."""
    promoted = [night for night in nights if night.promoted]
    if not promoted:
        return ""
    return max(promoted, key=lambda night: (night.promoted_at, night.date)).challenger


def nights_table(nights: Sequence[Night]) -> str:
    """Format the last 30 nights in Markdown, newest first.

    Missed nights have a row, unless they were made up for.
    """
    begun = {night.date for night in nights}
    lines = [
        "| night | challenger | champion | challenger - champion | verdict |",
        "|---|---:|---:|---:|---|",
    ]
    for night in reversed(nights[-30:]):
        if night.verdict in ("failed", "collapsed"):
            words = f"{WORDS[night.verdict]}: {night.said}"
        else:
            words = WORDS[night.verdict]
        figures = [
            _share(night.challenger_success),
            _share(night.champion_success),
            _change(night.difference),
        ]
        lines.append(
            f"| {night.date} | {' | '.join(figures)} | {' '.join(words.split()).replace('|', '/')} "
            "|"
        )
        lines += [
            f"| {each} | | | | **missed**: no training ran |"
            for each in reversed(night.missed)
            if each not in begun
        ]
    now = last_champion(nights)
    return "\n".join(
        [
            *lines,
            "",
            f"Promoted last: `{now}`." if now else "No challenger has been promoted yet.",
            "Both are measured on the same held-out tasks with the night's seed. Brackets are 95 % "
            "intervals over tasks, and the difference is paired by task. The challenger becomes "
            "the champion only if the whole interval of the difference is above zero.",
            "",
        ]
    )


def _share(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.value) else share(estimate)


def _change(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.value) else change(estimate)
