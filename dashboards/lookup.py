"""Resolve the address of a request to a run, the runs of an experiment or a trajectory.

Addresses that do not exist raise errors that are shown as pages.
"""

from __future__ import annotations

from starlette.requests import Request

from dashboards.arms import Arm, arms_of, arms_of_studies, comparable_runs
from dashboards.index import Index
from dashboards.run_folders import RunFolder, run_folder, run_folders
from dashboards.templating import NotFoundError
from dashboards.trajectory import Address, TrajectoryView, load_trajectory

TRAJECTORY = "/{run:path}/{kind}/{name}/{group:int}/{member:int}"
"""Part of an address that names a trajectory."""


def index_of(request: Request) -> Index:
    """Return the index of all trajectories."""
    index: Index = request.app.state.index
    return index


def requested_trajectory(request: Request) -> TrajectoryView:
    """Return the trajectory of the address.

    Raises:
        NotFoundError: It does not exist.
    """
    words = request.path_params
    found = load_trajectory(
        index_of(request),
        Address(words["run"], words["kind"], words["name"], words["group"], words["member"]),
    )
    if found is None:
        raise NotFoundError(
            "There is no trajectory "
            f"{words['run']}/{words['kind']}/{words['name']}/{words['group']}/{words['member']}."
        )
    return found


def requested_run(request: Request) -> RunFolder:
    """Return the run of the address.

    Raises:
        NotFoundError: It does not exist.
    """
    name = request.path_params["run"]
    found = run_folder(index_of(request).runs, name)
    if found is None:
        raise NotFoundError(f"There is no run {name!r} in {index_of(request).runs}.")
    return found


def requested_runs(request: Request) -> list[RunFolder]:
    """Return the runs listed as run=... in the address, in order.

    Unknown and repeated names are skipped.
    """
    runs = index_of(request).runs
    names = dict.fromkeys(request.query_params.getlist("run"))
    return [found for name in names if name and (found := run_folder(runs, name)) is not None]


def requested_arms(request: Request) -> tuple[list[Arm], dict[str, str]]:
    """Return the arms of the experiment in the address, and the runs that are left out.

    See `comparable_runs`.

    Raises:
        NotFoundError: No run of the experiment has finished.
    """
    name = request.path_params["experiment"]
    runs = index_of(request).runs
    taken, left_out = comparable_runs(
        [each for each in run_folders(runs) if each.recipe.get("name") == name]
    )
    if not taken:
        raise NotFoundError(
            f"No run of the experiment {name!r} has finished. A study needs finished runs."
        )
    return arms_of(taken, arms_of_studies(runs, name)), left_out
