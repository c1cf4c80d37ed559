"""The pages: what each address shows. Each is made from the index and the runs' folders anew, so a page never outlives what it shows."""

from __future__ import annotations

import csv
import io
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dashboards import figures
from dashboards.arms import against, arms_of, final, paired_by_task
from dashboards.drawings import NotDrawnError, drawn
from dashboards.filters import Filters, choices, listed
from dashboards.index import Index
from dashboards.parting import Attempt, attempts_at
from dashboards.run_folders import RunFolder, run_folder, run_folders
from dashboards.templating import TEMPLATES, NotThereError, html
from dashboards.trajectory import Address, Shown, group_of, shown

FIGURES: dict[str, Callable[[RunFolder], figures.Figure]] = {
    "learning-curve": figures.learning_curve,
    "lanes": figures.lanes,
    "signs": figures.signs,
}


def runs(request: Request) -> Response:
    """All runs, by experiment."""
    index, now = _index(request), time.time()
    experiments: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in run_folders(index.runs):
        evaluations = run.evaluations()
        experiments[str(run.recipe.get("name", "?"))].append(
            {
                "run": run,
                "live": run.is_live(now),
                "done": max(run.metrics(), default=0),
                "start": evaluations.get("start"),
                "end": final(run),
                "rise": paired_by_task(evaluations["start"], end) if "start" in evaluations and (end := final(run)) else None,
            }
        )
    collected = index.query(
        "select run, environment, count(*) as n, avg(succeeded::int) filter (outcome <> 'failed') as share from trajectories "
        "where kind = 'collected' group by 1, 2 order by 1"
    )
    problems = index.query("select path, problem from files where problem <> '' order by path")
    return html(request, "runs.html", experiments=experiments, collected=collected, problems=problems)


def run(request: Request) -> Response:
    """One run: its curves, its evaluations, its steps."""
    folder = _run(request)
    index = _index(request)
    steps = index.query(
        """select step, any_value(horizon) as horizon, count(*) as n, avg(succeeded::int) as share, avg(turns) as turns,
        avg((outcome = 'truncated')::int) as cut, count(distinct "group") as groups,
        count(distinct "group") - count(distinct case when reward <> mean then "group" end) as alike
        from (select *, avg(reward) over (partition by step, "group") as mean from trajectories where run = ? and kind = 'rollouts')
        group by step order by step""",
        [folder.name],
    )
    evaluations = folder.evaluations()
    start = evaluations.get("start")
    rises = {name: paired_by_task(start, each) for name, each in evaluations.items() if start and name != "start"}
    return html(
        request, "run.html", run=folder, steps=steps, evaluations=evaluations, rises=rises, live=folder.is_live(time.time()),
        mlflow=request.app.state.links.mlflow_run(folder), prefect=request.app.state.links.prefect(),
    )  # fmt: skip


def figure(request: Request) -> Response:
    """A run's figure as data, for the page that draws it; a live page asks again."""
    folder, draw = _run(request), FIGURES.get(request.path_params["figure"])
    if draw is None:
        raise NotThereError(f"there is no figure {request.path_params['figure']!r}; there are: {', '.join(FIGURES)}")
    return JSONResponse(draw(folder) | {"live": folder.is_live(time.time())})


def step(request: Request) -> Response:
    """The groups of one file of trajectories: a training step or an evaluation."""
    words = request.path_params
    index = _index(request)
    groups = index.query(
        """select "group", any_value(task) as task, any_value(tag) as tag,
        list({'member': member, 'reward': reward, 'outcome': outcome, 'turns': turns} order by member) as members,
        stddev_pop(reward) as deviation, avg(reward) as mean, avg(turns) as turns
        from trajectories left join tags using (environment, task) where run = ? and kind = ? and name = ?
        group by "group" order by "group" """,
        [words["run"], words["kind"], words["name"]],
    )
    if not groups:
        raise NotThereError(f"{words['run']} has no trajectories {words['kind']}/{words['name']}")
    names = index.query("select distinct name from trajectories where run = ? and kind = ? order by 1", [words["run"], words["kind"]])
    ordered = [row["name"] for row in names]
    at = ordered.index(words["name"])
    return html(
        request, "step.html", groups=groups, **words, before=ordered[at - 1] if at else None,
        after=ordered[at + 1] if at + 1 < len(ordered) else None,
    )  # fmt: skip


def trajectories(request: Request) -> Response:
    """The list of trajectories, narrowed down."""
    filters = Filters.of(request.query_params)
    index = _index(request)
    return html(request, "trajectories.html", filters=filters, listed=listed(index, filters), choices=choices(index, filters.run))


def trajectory(request: Request) -> Response:
    """One trajectory."""
    found = _trajectory(request)
    return html(request, "trajectory.html", alone=False, **_about(request, found))


def drawing(request: Request) -> Response:
    """The world after some turns of a trajectory, as a piece of HTML."""
    return HTMLResponse(drawing_of(_trajectory(request), int(request.path_params["turns"])))


def shared(request: Request) -> Response:
    """One trajectory, or its whole group, as a file that holds all it needs."""
    found = _trajectory(request)
    members = group_of(_index(request), found.address) if "group" in request.query_params else [found]
    static = Path(__file__).parent / "static"
    page = TEMPLATES.get_template("shared.html").render(
        members=[
            _about(request, member) | {"drawings": [drawing_of(member, n) for n in range(len(member.turns) + 1)]} for member in members
        ],
        style=Markup((static / "style.css").read_text(encoding="utf-8")),
        script=Markup((static / "trajectory.js").read_text(encoding="utf-8")),
        request=request,
    )
    name = f"{found.row['environment']}-{found.row['task']}-{found.address.name}-{found.address.group}"
    return _file(page, "text/html", f"{name}.html")


def group(request: Request) -> Response:
    """The members of a group, side by side."""
    words = request.path_params
    members = group_of(_index(request), Address(words["run"], words["kind"], words["name"], words["group"], 0))
    if not members:
        raise NotThereError(f"there is no group {words['group']} in {words['run']}/{words['kind']}/{words['name']}")
    rewards = [member.row["reward"] for member in members if member.row["outcome"] != "failed"]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5 if rewards else 0.0
    return html(request, "group.html", members=members, mean=mean, deviation=deviation, **words)


def task(request: Request) -> Response:
    """The same task at several checkpoints of a run, or in several runs, and where they part."""
    environment, number = request.path_params["environment"], request.path_params["task"]
    index, chosen = _index(request), request.query_params.get("run", "")
    found: list[Attempt] = attempts_at(index, environment, number, chosen)
    if not found:
        raise NotThereError(f"no evaluation holds task {number} of {environment}")
    return html(request, "task.html", attempts=found, environment=environment, task=number, chosen=chosen)


def compare(request: Request) -> Response:
    """Two runs, paired by task."""
    names = request.query_params.getlist("run")
    index = _index(request)
    everything = [each for each in run_folders(index.runs) if final(each)]
    chosen = [each for name in names if (each := run_folder(index.runs, name)) is not None]
    ends = [final(each) for each in chosen]
    rows, gap = [], None
    if len(chosen) == 2 and ends[0] and ends[1]:
        gap = paired_by_task(ends[0], ends[1])
        tallies = [end["tallies"] for end in ends if end]
        rows = [(task, tallies[0][task], tallies[1][task]) for task in sorted(tallies[0].keys() & tallies[1].keys(), key=int)]
        rows.sort(key=lambda row: row[2][0] / max(1, row[2][1]) - row[1][0] / max(1, row[1][1]))
    return html(request, "compare.html", everything=everything, chosen=chosen, gap=gap, rows=rows)


def study(request: Request) -> Response:
    """The runs of one experiment as arms with seeds."""
    arms = _arms(request)
    reference = next((arm for arm in arms if arm.name == request.query_params.get("against")), arms[0])
    differences = {arm.name: against(reference, arm) for arm in arms if arm is not reference}
    return html(
        request, "study.html", experiment=request.path_params["experiment"], arms=arms, reference=reference, differences=differences
    )


def study_figure(request: Request) -> Response:
    """A study's curves as data."""
    return JSONResponse(figures.bands(_arms(request)))


def data(request: Request) -> Response:
    """A figure's data, or the list's rows, as CSV."""
    words = request.path_params
    if words["what"] == "trajectories":
        rows = listed(_index(request), Filters.of(request.query_params), size=100_000).rows
        return _csv(rows, "trajectories.csv")
    if words["what"] == "metrics":
        folder = run_folder(_index(request).runs, request.query_params.get("run", ""))
        if folder is None:
            raise NotThereError(f"there is no run {request.query_params.get('run', '')!r}")
        return _csv([{"step": number, **row} for number, row in folder.metrics().items()], f"{folder.name}-metrics.csv")
    raise NotThereError(f"there is no data {words['what']!r}; there are: trajectories, metrics")


def _about(request: Request, found: Shown) -> dict[str, Any]:
    address = found.address
    siblings = _index(request).query(
        'select member, outcome, reward from trajectories where run = ? and kind = ? and name = ? and "group" = ? order by member',
        [address.run, address.kind, address.name, address.group],
    )
    rewards = [row["reward"] for row in siblings if row["outcome"] != "failed"]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return {"found": found, "siblings": siblings, "against_group": found.row["reward"] - mean, "drawing": Markup("")}


def drawing_of(found: Shown, turns: int) -> Markup:
    """The world after some turns, or why it is not drawn."""
    try:
        return drawn(found, max(0, min(turns, len(found.turns)))) or Markup("<p class=quiet>This world has no drawing.</p>")
    except NotDrawnError as problem:
        return Markup("<p class=quiet>Not drawn: {}</p>").format(problem)


def _trajectory(request: Request) -> Shown:
    words = request.path_params
    found = shown(_index(request), Address(words["run"], words["kind"], words["name"], words["group"], words["member"]))
    if found is None:
        raise NotThereError(f"there is no trajectory {words['run']}/{words['kind']}/{words['name']}/{words['group']}/{words['member']}")
    return found


def _run(request: Request) -> RunFolder:
    name = request.path_params["run"]
    found = run_folder(_index(request).runs, name)
    if found is None:
        raise NotThereError(f"there is no run {name!r} in {_index(request).runs}")
    return found


def _arms(request: Request) -> list[Any]:
    name = request.path_params["experiment"]
    found = arms_of([each for each in run_folders(_index(request).runs) if each.recipe.get("name") == name])
    if not found:
        raise NotThereError(f"no run belongs to the experiment {name!r}")
    return found


def _index(request: Request) -> Index:
    index: Index = request.app.state.index
    return index


def _csv(rows: list[dict[str, Any]], name: str) -> Response:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return _file(text.getvalue(), "text/csv", name)


def _file(content: str, kind: str, name: str) -> Response:
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
    return Response(content, media_type=kind, headers={"content-disposition": f'attachment; filename="{safe}"'})


_TRAJECTORY = "/{run:path}/{kind}/{name}/{group:int}/{member:int}"
ROUTES: list[tuple[str, Callable[[Request], Response]]] = [
    ("/", runs),
    ("/compare", compare),
    ("/trajectories", trajectories),
    ("/trajectories" + _TRAJECTORY, trajectory),
    ("/drawings" + _TRAJECTORY + "/{turns:int}", drawing),
    ("/shared" + _TRAJECTORY, shared),
    ("/groups/{run:path}/{kind}/{name}/{group:int}", group),
    ("/tasks/{environment}/{task:int}", task),
    ("/studies/{experiment}", study),
    ("/studies/{experiment}/figure.json", study_figure),
    ("/data/{what}.csv", data),
    ("/figures/{run:path}/{figure}.json", figure),
    ("/steps/{run:path}/{kind}/{name}", step),
    ("/runs/{run:path}", run),
]
