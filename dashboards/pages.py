"""The pages and their addresses.

Each request renders its page from the current index and run folders, so no page is out of date.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from dashboards.by_turn import success_by_horizon
from dashboards.divergence import Attempt, attempts_of_task, divergence_of
from dashboards.filters import BOUNDS, Filters, choices, list_trajectories
from dashboards.lookup import (
    REPORT,
    TRAJECTORY,
    index_of,
    requested_run,
    requested_runs,
    requested_study,
    requested_trajectory,
    study_folders,
)
from dashboards.overlay import difference_by_task, final_evaluation, is_comparable, names_of
from dashboards.run_folders import STEP_FILE, checkpoints_of, run_folder, run_folders
from dashboards.step_timeline import step_timeline
from dashboards.templating import NotFoundError, html
from dashboards.trajectory import Address, TrajectoryView, group_of
from tasks.training.collapse import last_good_step, verdict_at
from tasks.training.groups import EQUAL

SCORED = "where outcome <> 'failed'"
ALIKE = f"max(reward) filter ({SCORED}) - min(reward) filter ({SCORED}) < {EQUAL}"
"""SQL for whether a group has zero variance, over its members without infrastructure failures.

Null if all members failed.
"""
STUDY_PICTURES = ("success.png", "training.png")
"""Pictures of a study's report."""


def runs(request: Request) -> Response:
    """Show all runs, grouped by experiment."""
    index, now = index_of(request), time.time()
    experiments: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in run_folders(index.runs):
        evaluations = run.evaluations()
        experiments[str(run.recipe.get("name", "?"))].append(
            {
                "run": run,
                "status": run.status(now),
                "done": max(run.metrics(), default=0),
                "start": evaluations.get("start"),
                "end": final_evaluation(run),
                "rise": difference_by_task(evaluations["start"], end)
                if "start" in evaluations and (end := final_evaluation(run))
                else None,
            }
        )
    collected = index.query(
        f"select run, environment, count(*) as n, {BOUNDS} from trajectories where kind = "
        "'collected' group by 1, 2 order by 1"
    )
    problems = index.query("select path, problem from files where problem <> '' order by path")
    return html(
        request,
        "runs.html",
        experiments=experiments,
        studies=[folder.name for folder in study_folders(index.runs)],
        collected=collected,
        problems=problems,
    )


def run(request: Request) -> Response:
    """Show one run: its curves, its evaluations and its steps."""
    folder = requested_run(request)
    index = index_of(request)
    steps = index.query(
        f"""with episodes as (select * from trajectories where run = ? and kind = 'rollouts'),
        variance as (select step, count(*) as groups, count(*) filter (where alike) as alike
        from (select step, {ALIKE} as alike from episodes group by step, "group") group by step)
        select step, any_value(horizon) as horizon, count(*) as n, {BOUNDS}, avg(turns) filter ({SCORED}) as turns,
        avg((outcome = 'truncated')::int) filter ({SCORED}) as cut, any_value(groups) as groups, any_value(alike) as alike
        from episodes join variance using (step) group by step order by step""",
        [folder.name],
    )
    evaluations = folder.evaluations()
    start = evaluations.get("start")
    rises = {
        name: difference_by_task(start, each)
        for name, each in evaluations.items()
        if start and name != "start"
    }
    history, links = folder.metrics(), request.app.state.links
    return html(
        request, "run.html", run=folder, status=folder.status(time.time()), live=folder.is_live(time.time()), steps=steps,
        evaluations=evaluations, rises=rises,
        mlflow=links.mlflow_run(folder), prefect=links.prefect_run(folder), horizons=success_by_horizon(index, folder),
        verdict=verdict_at(history, max(history, default=0)), last_good=last_good_step(history), done=max(history, default=0),
        checkpoints=[path.name for path in checkpoints_of(folder)],
    )  # fmt: skip


def step(request: Request) -> Response:
    """Show the groups of one file of trajectories: a training step or an evaluation."""
    words = request.path_params
    index = index_of(request)
    groups = index.query(
        f"""select "group", any_value(task) as task, any_value(tag) as tag,
        list({{'member': member, 'reward': reward, 'outcome': outcome, 'turns': turns}} order by member) as members,
        {ALIKE} as alike, avg(reward) filter ({SCORED}) as mean, avg(turns) filter ({SCORED}) as turns
        from trajectories left join tags using (environment, task) where run = ? and kind = ? and name = ?
        group by "group" order by "group" """,
        [words["run"], words["kind"], words["name"]],
    )
    if not groups:
        raise NotFoundError(
            f"There are no trajectories {words['kind']}/{words['name']} in {words['run']}."
        )
    names = index.query(
        "select name from trajectories where run = ? and kind = ? group by name "
        "order by any_value(step), min(policy_version), name",
        [words["run"], words["kind"]],
    )
    ordered = [row["name"] for row in names]
    at = ordered.index(words["name"])
    folder = run_folder(index.runs, words["run"])
    file = STEP_FILE.fullmatch(f"{words['name']}.parquet")
    if folder and file and words["kind"] == "rollouts":
        timeline = step_timeline(index, folder, int(file[1]))
    else:
        timeline = None
    return html(
        request, "step.html", groups=groups, **words, before=ordered[at - 1] if at else None,
        after=ordered[at + 1] if at + 1 < len(ordered) else None, timeline=timeline, step=int(file[1]) if file else None,
    )  # fmt: skip


def trajectories(request: Request) -> Response:
    """Show the filtered list of trajectories."""
    filters = Filters.parse(request.query_params)
    index = index_of(request)
    return html(
        request,
        "trajectories.html",
        filters=filters,
        page=list_trajectories(index, filters),
        choices=choices(index, filters.run),
    )


def trajectory(request: Request) -> Response:
    """Show one trajectory."""
    found = requested_trajectory(request)
    failed = found.row["outcome"] in ("finished", "truncated")
    left = divergence_of(index_of(request), found) if failed else None
    return html(request, "trajectory.html", failed=failed, left=left, **about(request, found))


def group(request: Request) -> Response:
    """Show the members of a group side by side."""
    words = request.path_params
    members = group_of(
        index_of(request), Address(words["run"], words["kind"], words["name"], words["group"], 0)
    )
    if not members:
        raise NotFoundError(
            f"There is no group {words['group']} in {words['run']}/{words['kind']}/{words['name']}."
        )
    rewards = [member.row["reward"] for member in members if member.row["outcome"] != "failed"]
    return html(
        request,
        "group.html",
        members=members,
        mean=fmean(rewards) if rewards else 0.0,
        deviation=pstdev(rewards) if rewards else 0.0,
        alike=bool(rewards) and max(rewards) - min(rewards) < EQUAL,
        **words,
    )


def task(request: Request) -> Response:
    """Show one task at several checkpoints or in several runs, and where the attempts diverge."""
    environment, number = request.path_params["environment"], request.path_params["task"]
    chosen = [name for name in request.query_params.getlist("run") if name]
    found: list[Attempt] = attempts_of_task(
        index_of(request), environment, number, chosen, request.query_params.get("sample", "")
    )
    if not found:
        raise NotFoundError(f"No evaluation contains task {number} of {environment}.")
    return html(
        request, "task.html", attempts=found, environment=environment, task=number, chosen=chosen
    )


def compare(request: Request) -> Response:
    """Show several runs in one figure, each compared with the first and paired by task."""
    chosen = requested_runs(request)
    everything = [
        each for each in run_folders(index_of(request).runs) if each.metrics() or each.evaluations()
    ]
    ends = [final_evaluation(each) for each in chosen]
    alike = [is_comparable(chosen[0], each) for each in chosen]
    gaps = [
        difference_by_task(ends[0], end) if is_alike and ends[0] and end else None
        for is_alike, end in zip(alike[1:], ends[1:], strict=True)
    ]
    tallies = [end["tallies"] if end and all(alike) else {} for end in ends]
    shared = set.intersection(*(set(each) for each in tallies if each)) if any(tallies) else set()
    rows = [(task, [each.get(task) for each in tallies]) for task in sorted(shared, key=int)]
    rows.sort(key=lambda row: _rate(row[1][-1]) - _rate(row[1][0]))
    return html(
        request,
        "compare.html",
        everything=everything,
        chosen=chosen,
        names=names_of(chosen),
        ends=ends,
        gaps=gaps,
        rows=rows,
    )


def study(request: Request) -> Response:
    """Show the report of a study, which `agentgym study` wrote."""
    folder = requested_study(request)
    return html(
        request,
        "study.html",
        name=folder.name,
        report=(folder / REPORT).read_text(encoding="utf-8"),
        pictures=[name for name in STUDY_PICTURES if (folder / name).is_file()],
    )


def about(request: Request, found: TrajectoryView) -> dict[str, Any]:
    """Return the template values of a trajectory's page."""
    address = found.address
    siblings = index_of(request).query(
        "select member, outcome, reward from trajectories where run = ? and kind = ? and name = ? "
        'and "group" = ? order by member',
        [address.run, address.kind, address.name, address.group],
    )
    mean = fmean([row["reward"] for row in siblings if row["outcome"] != "failed"] or [0.0])
    return {
        "found": found,
        "siblings": siblings,
        "against_group": found.row["reward"] - mean,
        "drawing": Markup(""),
    }


def _rate(tally: list[int] | None) -> float:
    return tally[0] / max(1, tally[1]) if tally else 0.0


ROUTES: list[tuple[str, Callable[[Request], Response]]] = [
    ("/", runs),
    ("/compare", compare),
    ("/trajectories", trajectories),
    ("/trajectories" + TRAJECTORY, trajectory),
    ("/groups/{run:path}/{kind}/{name}/{group:int}", group),
    ("/tasks/{environment}/{task:int}", task),
    ("/studies/{study}", study),
    ("/steps/{run:path}/{kind}/{name}", step),
    ("/runs/{run:path}", run),
]
