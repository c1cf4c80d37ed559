"""How a page is made: templates, figures as people read them, and the pages that say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tasks.evaluation.statistics import Estimate

TEMPLATES = Environment(
    loader=PackageLoader("dashboards"), autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True
)


class NotThereError(LookupError):
    """An address that leads nowhere; the message says what is not there."""


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "—" if share is None or share != share else f"{100 * share:.1f} %"


def bounds(row: Any) -> str:
    """The bounds `low` and `high` of a share, e.g. "57.8 % to 71.1 %"; one value where they are equal."""
    low, high = (row["low"], row["high"]) if isinstance(row, dict) else (row.low, row.high)
    return percent(low) if low == high else f"{percent(low)} to {percent(high)}, as episodes are missing"


def interval(estimate: Estimate, points: bool = False) -> str:
    """A value with its 95 % interval, as shares or as a difference in points."""
    if estimate.value != estimate.value:
        return "—"
    sign = "+" if points else ""
    value = f"{100 * estimate.value:{sign}.1f}" + ("" if points else " %")
    if estimate.low != estimate.low:
        return value
    # Student's t knows nothing of a share's ends.
    low, high = (estimate.low, estimate.high) if points else (max(0.0, estimate.low), min(1.0, estimate.high))
    return f"{value} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def stored_interval(estimate: Mapping[str, Any] | None) -> str:
    """The same of an estimate as an evaluation's file holds it."""
    if not estimate or estimate.get("value") is None:
        return "—"
    low, high = estimate.get("low"), estimate.get("high")
    return percent(estimate["value"]) + (f" [{100 * low:.1f}, {100 * high:.1f}]" if low is not None and high is not None else "")


def seconds(value: float | None) -> str:
    """A duration as people read it."""
    if value is None:
        return "—"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def moment(value: float | None) -> str:
    """A time in seconds since 1970 as people read it, in UTC."""
    return "—" if value is None else datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")


def duration(value: float | None) -> str:
    """A duration in hours and minutes, e.g. "2 h 05 min"; in seconds below two minutes."""
    if value is None:
        return "—"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{value:.0f} s" if value < 120 else f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def query(words: Mapping[str, str | list[str]]) -> str:
    """Words of an address behind the question mark; a list stands there once for each of its values."""
    return urlencode(words, doseq=True)


TEMPLATES.filters |= {each.__name__: each for each in (query, percent, bounds, interval, stored_interval, seconds, moment, duration)}


def html(request: Request, template: str, **values: Any) -> Response:
    """A page of a template."""
    return HTMLResponse(TEMPLATES.get_template(template).render(request=request, **values))


def problem(request: Request, message: str, status: int) -> Response:
    """A page that says what is wrong with an address."""
    page = TEMPLATES.get_template("problem.html").render(request=request, message=message)
    return HTMLResponse(page, status)
