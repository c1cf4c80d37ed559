"""Tests of nightly champion and challenger: promotion, records of nights, and their table."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError
from flows.night_schedule import due_dates, scheduled_dates
from flows.nightly import champion, check_night
from tasks.evaluation.nights import (
    WORDS,
    Night,
    is_better,
    last_champion,
    missed_nights,
    nights_table,
    read_nights,
    seed_of,
    write_night,
)
from tasks.evaluation.statistics import UNKNOWN, Estimate, Tally, difference

BETTER = Night(
    "2026-11-22", 20261122, "/runs/a/step-1", "/runs/b/step-2", "better", Estimate(0.6, 0.5, 0.7, 20), Estimate(0.3, 0.2, 0.4, 20),
    Estimate(0.3, 0.1, 0.5, 20), ("2026-11-21",),
)  # fmt: skip
NIGHTS = [
    Night("2026-11-19", 20261119, "", "/runs/a/step-1", "first", Estimate(0.3, 0.2, 0.4, 20)),
    Night(
        "2026-11-20",
        20261120,
        "/runs/a/step-1",
        verdict="failed",
        said="TrainerFailedError: it ended | badly\nat once",
    ),
    BETTER,
]


@pytest.mark.parametrize(
    ("champion", "challenger", "better"),
    [(0, 8, True), (8, 0, False), (4, 4, False)],
)
def test_only_a_positive_interval_is_better(champion: int, challenger: int, better: bool) -> None:
    held = {task: Tally(champion, 8) for task in range(20)}
    tried = {task: Tally(challenger, 8) for task in range(20)}
    assert is_better(difference(held, tried)) is better


def test_a_rise_whose_interval_contains_zero_is_not_better() -> None:
    held, tried = (
        {task: Tally(int(task < solved), 1) for task in range(20)} for solved in (10, 11)
    )
    found = difference(held, tried)
    assert found.value > 0 > found.low
    assert not is_better(found)


def test_better_needs_an_interval() -> None:
    assert not is_better(Estimate(0.5, math.nan, math.nan, 1))


@pytest.mark.parametrize("overrides", [{"seeds.training": 5}, {"seeds": {"training": 5}}])
def test_a_seed_that_the_night_derives_from_its_date_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"seeds\.training"):
        check_night("recipe", overrides)


def test_the_seed_of_a_night_is_derived_from_its_date() -> None:
    assert seed_of(date(2026, 11, 22)) == 20261122


def test_due_nights_between_the_last_and_tonight_are_missed() -> None:
    due = [date(2026, 11, day) for day in (20, 22, 24, 25)]
    assert missed_nights(NIGHTS, due, date(2026, 11, 23)) == ()
    assert missed_nights(NIGHTS, due, date(2026, 11, 25)) == ("2026-11-24",)
    assert missed_nights([], due, date(2026, 11, 25)) == ()


def test_only_the_dates_of_a_schedule_are_due() -> None:
    first, end = date(2026, 11, 20), date(2026, 11, 25)  # Friday to Tuesday
    weekdays, often = (
        CronSchedule(cron="0 2 * * 1-5", timezone="UTC"),
        CronSchedule(cron="* * * * *"),
    )
    other_zone = CronSchedule(cron="30 23 * * 5", timezone="America/New_York")
    assert [day.day for day in scheduled_dates([weekdays], first, end)] == [20, 23, 24]
    assert [day.day for day in scheduled_dates([weekdays, other_zone], first, end)] == [
        20,
        21,
        23,
        24,
    ]
    assert len(scheduled_dates([often], first, end)) == 5
    assert scheduled_dates([], first, end) == []
    assert len(due_dates(first, end)) == 5  # a command is due on every date
    every_second = IntervalSchedule(
        interval=timedelta(days=2), anchor_date=datetime(2026, 11, 1, 2, tzinfo=UTC)
    )
    assert [day.day for day in scheduled_dates([every_second], first, end)] == [21, 23]


def test_records_of_nights_are_read_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    for night in reversed(NIGHTS):
        write_night(tmp_path, night)
    (tmp_path / "2026-11-21.json").write_text('{"date": "2026-11-21", "verd')
    (tmp_path / "owner.lock").touch()
    nights, damaged = read_nights(tmp_path)
    assert [night.date for night in nights] == ["2026-11-19", "2026-11-20", "2026-11-22"]
    assert nights[-1] == BETTER
    assert str(nights[0].difference) == str(UNKNOWN)
    (line,) = damaged
    assert str(tmp_path / "2026-11-21.json") in line


def test_the_table_lists_verdicts_failures_and_missed_nights_newest_first() -> None:
    rows = [line for line in nights_table(NIGHTS).splitlines() if line.startswith("| 2026")]
    assert [row.split()[1] for row in rows] == [
        "2026-11-22",
        "2026-11-21",
        "2026-11-20",
        "2026-11-19",
    ]
    assert (
        f"60.0 % [50.0, 70.0] | 30.0 % [20.0, 40.0] | +30.0 [+10.0, +50.0] | {WORDS['better']}"
        in rows[0]
    )
    assert "missed" in rows[1]
    assert "TrainerFailedError: it ended / badly at once |" in rows[2]
    assert "`/runs/b/step-2`" in nights_table(NIGHTS)
    assert last_champion(NIGHTS[:2]) == "/runs/a/step-1"


def test_night_that_was_run_later_is_not_listed_as_missed() -> None:
    made_up = Night("2026-11-21", 20261121, "/runs/b/step-2", "/runs/c/step-1", "not better")
    rows = nights_table([*NIGHTS[:2], made_up, BETTER]).splitlines()
    (row,) = [row for row in rows if row.startswith("| 2026-11-21")]
    assert WORDS["not better"] in row


def test_champion_is_the_last_promoted_checkpoint_regardless_of_its_date() -> None:
    later = replace(BETTER, promoted_at=1.0)
    made_up = replace(NIGHTS[0], verdict="better", promoted_at=2.0)
    assert last_champion([made_up, later]) == made_up.challenger
    assert last_champion([replace(made_up, verdict="not better"), later]) == later.challenger


def test_last_recorded_promotion_is_the_champion_without_an_mlflow_alias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flows.nightly.earlier_records_sent", lambda _: nullcontext())
    monkeypatch.setattr("flows.nightly.mlflow_address", lambda _: ("sqlite://", ""))
    for alias, nights, found in (
        (None, NIGHTS, BETTER.challenger),
        (None, [], ""),
        (Path("/runs/c/step-3"), NIGHTS, "/runs/c/step-3"),
    ):
        monkeypatch.setattr("flows.nightly.aliased_checkpoint", lambda *_, alias=alias: alias)
        assert champion(InfraSettings(), "model", nights) == found
