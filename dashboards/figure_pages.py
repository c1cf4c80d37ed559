"""Data and downloads: figures as JSON, drawings, tables as CSV, pages as single files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dashboards import figures
from dashboards.by_turn import success_by_turn
from dashboards.drawings import DrawingError, draw_trajectory
from dashboards.filters import Filters, list_trajectories
from dashboards.index import Index
from dashboards.lookup import (
    TRAJECTORY,
    index_of,
    requested_run,
    requested_runs,
    requested_study,
    requested_trajectory,
)
from dashboards.overlay import overlay
from dashboards.pages import STUDY_PICTURES, about
from dashboards.run_folders import RunFolder, run_folder
from dashboards.step_timeline import step_timeline, timeline_figure
from dashboards.templating import TEMPLATES, NotFoundError
from dashboards.trajectory import TrajectoryView, group_of

STATIC = Path(__file__).parent / "static"
FIGURES: dict[str, Callable[[Index, RunFolder], figures.Figure]] = {
    "learning-curve": lambda _, run: figures.learning_curve(run),
    "by-turn": success_by_turn,
    "lanes": lambda _, run: figures.time_per_step(run),
    "signs": lambda _, run: figures.signs(run),
}
EMPTY: figures.Figure = {"data": [], "layout": {}}


def figure(request: Request) -> Response:
    """Return a run's figure as JSON. Pages of unfinished runs poll it."""
    folder, draw = requested_run(request), FIGURES.get(request.path_params["figure"])
    if draw is None:
        raise NotFoundError(
            f"There is no figure {request.path_params['figure']!r}. The figures are: "
            f"{', '.join(FIGURES)}."
        )
    return JSONResponse(draw(index_of(request), folder) | {"unfinished": not folder.is_finished})


def timeline(request: Request) -> Response:
    """Return the timeline of a training step as JSON."""
    clock = step_timeline(index_of(request), requested_run(request), request.path_params["step"])
    return JSONResponse(timeline_figure(clock) if clock else EMPTY)


def compare_figure(request: Request) -> Response:
    """Return the figure that compares several runs as JSON."""
    runs = requested_runs(request)
    return JSONResponse(
        (overlay(runs) if runs else EMPTY)
        | {"unfinished": not all(run.is_finished for run in runs)}
    )


def study_picture(request: Request) -> Response:
    """Return a picture of a study's report."""
    path = requested_study(request) / f"{request.path_params['picture']}.png"
    if path.name not in STUDY_PICTURES or not path.is_file():
        raise NotFoundError(f"There is no picture {path.name}.")
    return Response(path.read_bytes(), media_type="image/png")


def drawing(request: Request) -> Response:
    """Return the drawing of the environment after some turns as an HTML fragment."""
    return HTMLResponse(
        drawing_of(requested_trajectory(request), int(request.path_params["turns"]))
    )


def drawing_of(found: TrajectoryView, turns: int) -> Markup:
    """Draw the environment after some turns, or state why it is not drawn."""
    try:
        return draw_trajectory(found, max(0, min(turns, len(found.turns)))) or Markup(
            "<p class=quiet>The viewer has no drawing for this world.</p>"
        )
    except DrawingError as problem:
        return Markup("<p class=quiet>The world cannot be drawn: {}</p>").format(problem)


def shared(request: Request) -> Response:
    """Export a trajectory or its group as a self-contained HTML file."""
    found = requested_trajectory(request)
    members = (
        group_of(index_of(request), found.address) if "group" in request.query_params else [found]
    )
    page = TEMPLATES.get_template("shared.html").render(
        members=[
            about(request, member)
            | {"drawings": [drawing_of(member, n) for n in range(len(member.turns) + 1)]}
            for member in members
        ],
        style=_static("style.css"),
        script=_static("trajectory.js"),
        request=request,
    )
    name = (
        f"{found.row['environment']}-{found.row['task']}-{found.address.name}-{found.address.group}"
    )
    return _file(page, "text/html", f"{name}.html")


def data(request: Request) -> Response:
    """Return a run's metrics or the rows of the list as CSV."""
    words = request.path_params
    if words["what"] == "trajectories":
        rows = list_trajectories(
            index_of(request), Filters.parse(request.query_params), size=100_000
        ).rows
        return _csv(rows, "trajectories.csv")
    if words["what"] == "metrics":
        folder = run_folder(index_of(request).runs, request.query_params.get("run", ""))
        if folder is None:
            raise NotFoundError(f"There is no run {request.query_params.get('run', '')!r}.")
        return _csv(
            [{"step": number, **row} for number, row in folder.metrics().items()],
            f"{folder.name}-metrics.csv",
        )
    raise NotFoundError(
        f"There is no table {words['what']!r}. The tables are: trajectories, metrics."
    )


def plotly_script() -> bytes:
    """Return Plotly's bundle from its Python package.

    Raises:
        NotFoundError: Plotly is not installed.
    """
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise NotFoundError("Plotly is not installed. Run make setup.")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


def plotly(_: Request) -> Response:
    """Serve Plotly's bundle."""
    return Response(
        plotly_script(), media_type="text/javascript", headers={"cache-control": "max-age=86400"}
    )


def _static(name: str) -> Markup:
    return Markup((STATIC / name).read_text(encoding="utf-8"))


def _csv(rows: list[dict[str, Any]], name: str) -> Response:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return _file(text.getvalue(), "text/csv", name)


def _file(content: str, kind: str, name: str) -> Response:
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
    return Response(
        content, media_type=kind, headers={"content-disposition": f'attachment; filename="{safe}"'}
    )


ROUTES: list[tuple[str, Callable[[Request], Response]]] = [
    ("/static/plotly.min.js", plotly),
    ("/compare/figure.json", compare_figure),
    ("/drawings" + TRAJECTORY + "/{turns:int}", drawing),
    ("/shared" + TRAJECTORY, shared),
    ("/studies/{study}/{picture}.png", study_picture),
    ("/data/{what}.csv", data),
    ("/figures/{run:path}/lanes/{step:int}.json", timeline),
    ("/figures/{run:path}/{figure}.json", figure),
]
