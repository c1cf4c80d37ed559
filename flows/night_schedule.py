"""The dates on which a deployment's schedules start nights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from prefect import get_client
from prefect.client.schemas.schedules import NoSchedule
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from pydantic import TypeAdapter


def due_dates(first: date, end: date) -> list[date]:
    """Return the dates from `first` until before `end` on which this flow run's deployment was due.

    Its current active schedules count. A command has no deployment and is due on every date.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is None:
        return [first + timedelta(days=number) for number in range((end - first).days)]
    try:
        with get_client(sync_client=True) as client:
            schedules = client.read_deployment(run.deployment_id).schedules
    except ObjectNotFound:  # deleted while its run waited
        return []
    return scheduled_dates(
        (
            each.schedule
            for each in schedules
            if each.active and not isinstance(each.schedule, NoSchedule)
        ),
        first,
        end,
    )


def scheduled_dates(schedules: Iterable[Any], first: date, end: date) -> list[date]:
    """Return the UTC dates from `first` until before `end` on which a schedule starts a run.

    Args:
        schedules: Schedules of Prefect's client.
        end: Date after the last one.
    """
    from prefect.server.schemas.schedules import SCHEDULE_TYPES  # takes seconds to import

    dated: list[Any] = [
        TypeAdapter(SCHEDULE_TYPES).validate_python(each.model_dump()) for each in schedules
    ]

    async def is_due(day: date) -> bool:
        begin = datetime.combine(day, time(), UTC)
        end = begin + timedelta(days=1) - timedelta(microseconds=1)
        return any([await each.get_dates(n=1, start=begin, end=end) for each in dated])

    async def due() -> list[date]:
        days = (first + timedelta(days=number) for number in range((end - first).days))
        return [day for day in days if await is_due(day)]

    return asyncio.run(due())
