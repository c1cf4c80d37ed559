from __future__ import annotations

import threading

import pytest

from tasks.tracking.background import BackgroundWriter
from tasks.tracking.library import TrackingError


def test_records_are_stored_in_the_order_given_even_when_the_store_is_away_for_a_while() -> None:
    writer, stored, calls = BackgroundWriter(), [], []

    def store(step: int) -> None:
        calls.append(step)
        if calls == [1]:
            raise ConnectionError("connection refused")
        stored.append(step)

    for step in range(1, 6):
        writer.put(f"step {step}", lambda step=step: store(step))  # type: ignore[misc]
    writer.flush(seconds=30)
    assert stored == [1, 2, 3, 4, 5]
    assert calls == [1, 1, 2, 3, 4, 5]


def test_a_refused_record_is_raised_once_by_the_next_flush_and_holds_nothing_up() -> None:
    writer, stored = BackgroundWriter(), []

    def refuse() -> None:
        raise TypeError("no such thing")

    writer.put("the picture x.png", refuse)
    writer.put("step 1", lambda: stored.append(1))
    with pytest.raises(TrackingError, match=r"the picture x\.png was refused by MLflow: no such thing"):
        writer.flush(seconds=30)
    writer.flush(seconds=30)
    assert stored == [1]


def test_a_flush_that_runs_out_of_time_says_how_much_is_missing_and_why() -> None:
    writer, tried, back = BackgroundWriter(), threading.Event(), threading.Event()

    def store() -> None:
        if not back.is_set():
            tried.set()
            raise ConnectionError("connection refused")

    writer.put("step 1", store)
    writer.put("step 2", lambda: None)
    assert tried.wait(30)
    with pytest.raises(TrackingError, match=r"2 records are not in MLflow after 0.2 s, first step 1: connection refused"):
        writer.flush(seconds=0.2)
    back.set()
    writer.flush(seconds=30)


def test_flushing_nothing_starts_nothing() -> None:
    before = threading.active_count()
    BackgroundWriter().flush(seconds=0)
    assert threading.active_count() == before
