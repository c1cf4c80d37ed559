"""Render pages: templates, number formats and error pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tasks.evaluation.report import change, share
from tasks.evaluation.statistics import Estimate

TEMPLATES = Environment(
    loader=PackageLoader("dashboards"),
    autoescape=select_autoescape(default=True),
    trim_blocks=True,
    lstrip_blocks=True,
)


class NotFoundError(LookupError):
    """An address that does not exist. The message names what is missing."""


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage."""
    return "—" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f} %"


def bounds(row: Any) -> str:
    """Format the bounds `low` and `high` of a success rate, e.g. "57.8 % to 71.1 %".

    Equal bounds give one value.
    """
    low, high = (row["low"], row["high"]) if isinstance(row, dict) else (row.low, row.high)
    return (
        percent(low) if low == high else f"{percent(low)} to {percent(high)} (episodes are missing)"
    )


def interval(estimate: Estimate, points: bool = False) -> str:
    """Format a value with its 95 % interval, as percentages or as a difference in points."""
    if math.isnan(estimate.value):
        return "—"
    return change(estimate) if points else share(estimate)


def stored_interval(estimate: Mapping[str, Any] | None) -> str:
    """Format an estimate with its 95 % interval, as stored in an evaluation's file."""
    if not estimate or estimate.get("value") is None:
        return "—"
    low, high = (
        math.nan if (bound := estimate.get(name)) is None else bound for name in ("low", "high")
    )
    return share(Estimate(estimate["value"], low, high, 0))


def seconds(value: float | None) -> str:
    """Format a duration in ms, seconds or minutes."""
    if value is None:
        return "—"
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min"


def moment(value: float | None) -> str:
    """Format a time in seconds since 1970 as UTC date and time."""
    return "—" if value is None else datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")


def duration(value: float | None) -> str:
    """Format a duration in hours and minutes, e.g. "2 h 05 min", or in s below two minutes."""
    if value is None:
        return "—"
    hours, minutes = divmod(round(value / 60), 60)
    if value < 120:
        return f"{value:.0f} s"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min"


def query(words: Mapping[str, str | list[str]]) -> str:
    """Encode the query string of an address. A list repeats its key for each value."""
    return urlencode(words, doseq=True)


TEMPLATES.filters |= {
    each.__name__: each
    for each in (query, percent, bounds, interval, stored_interval, seconds, moment, duration)
}


def html(request: Request, template: str, **values: Any) -> Response:
    """Render a page from a template."""
    return HTMLResponse(TEMPLATES.get_template(template).render(request=request, **values))


def problem(request: Request, message: str, status: int, field: str = "") -> Response:
    """Render an error page. `field` names the invalid field of an address or a form."""
    page = TEMPLATES.get_template("problem.html").render(
        request=request, message=message, status=status, field=field
    )
    return HTMLResponse(page, status)
