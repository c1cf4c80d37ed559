"""Resolve the address of a request to a run, a study or a trajectory.

Addresses that do not exist raise errors that are shown as pages.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request

from dashboards.index import Index
from dashboards.run_folders import RunFolder, run_folder
from dashboards.templating import NotFoundError
from dashboards.trajectory import Address, TrajectoryView, load_trajectory

REPORT = "report.md"
"""File of a study's report."""
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


def requested_study(request: Request) -> Path:
    """Return the folder of the study in the address.

    Raises:
        NotFoundError: It has no report.
    """
    name, folders = request.path_params["study"], study_folders(index_of(request).runs)
    found = next((folder for folder in folders if folder.name == name), None)
    if found is None:
        raise NotFoundError(f"There is no report of the study {name!r}.")
    return found


def study_folders(runs: Path) -> list[Path]:
    """Return the folders of the studies that have a report."""
    return sorted(report.parent for report in runs.glob(f"studies/*/{REPORT}"))
