"""Content of a flow run's page in Prefect: log lines, links to MLflow and the viewer, pictures."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_client, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError
from prefect.utilities.urls import url_for

from configs.infrastructure import infra_settings
from configs.task_selection import selection_name
from flows.killed_flow_runs import prefect_server
from tasks.provision.services import addresses
from tasks.tracking.mlflow_page import run_link
from tasks.tracking.owner import OWN_SERVER

if TYPE_CHECKING:
    from configs.experiment import Experiment
    from tasks.tracking.tracker import Tracker


def flow_log() -> Callable[[str], object]:
    """Return a function that logs a line to the current flow run's page.

    It also works in subflows. Outside a flow run the lines are dropped.
    """
    try:
        return get_run_logger().info
    except MissingContextError:
        return lambda _: None


def show_picture(picture: Path, key: str, description: str) -> None:
    """Put a PNG and the path of its file on the flow run's page.

    The picture is embedded in the text, because the page can read neither local files nor MLflow
    without its login. Prefect keeps the text of every run, so the picture is made small. Prefect's
    own image artifact prints the whole data URL below the picture, which is thousands of
    characters.
    """
    data = base64.b64encode(small(picture)).decode()
    create_markdown_artifact(
        f"![{key}](data:image/webp;base64,{data})\n\n{description}\n\nFull size: `{picture}`",
        key=key,
        description=description,
    )


def small(picture: Path) -> bytes:
    """Convert a drawing to a small WebP: half the width and height, 16 colours.

    It takes a tenth of the PNG's bytes and is as legible.
    """
    from PIL import Image

    with Image.open(picture) as drawn:
        halved = drawn.convert("RGB").reduce(2)
    few = halved.quantize(
        16, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
    ).convert("RGB")
    packed = io.BytesIO()
    few.save(packed, "WEBP", lossless=True)
    return packed.getvalue()


def link_to_mlflow(tracker: Tracker, run: str, runs: Path, log: Callable[[str], object]) -> None:
    """Link the flow run's page to the run in MLflow, if MLflow has a page."""
    uri, mlflow_id, services = tracker.tracking_uri, tracker.mlflow_id(run), addresses(runs)
    if not uri.startswith("http") and services is not None:
        uri = services.mlflow_tracking_uri
    if mlflow_id is None or not uri.startswith("http"):
        log(
            f"MLflow records: {uri}. Start its UI with `make up`."
            if mlflow_id
            else f"MLflow at {uri} is not reachable. Records are sent later."
        )
        return
    link = run_link(infra_settings().mlflow_page_url or uri, tracker.experiment_id, mlflow_id)
    log(f"MLflow: {link}")
    create_link_artifact(
        link=link,
        link_text="The run in MLflow",
        key="mlflow",
        description=f"Metrics, traces and checkpoints: {link}",
    )


def tag_flow_run(*tags: str) -> None:
    """Add tags to the current flow run, by which Prefect's list of runs can be filtered.

    Does nothing outside a flow run.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    # Missing tags must not fail a run.
    with suppress(Exception), get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, tags={*context.flow_run.tags, *tags})


def flow_run_link(runs: Path) -> str | None:
    """Return the address of the current flow run's page in Prefect.

    Returns:
        None outside a flow run, or if the page does not outlive the run.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return None
    services = addresses(runs)
    if services is not None:
        return f"{services.prefect_ui_url}/runs/flow-run/{context.flow_run.id}"
    if prefect_server() in ("", OWN_SERVER):  # a server of this process, which ends with it
        return None
    return url_for("flow-run", obj_id=context.flow_run.id)


def link_to_viewer(folder: Path, runs: Path, log: Callable[[str], object]) -> None:
    """Link the flow run's page to the run in the viewer, if the viewer is up.

    Also writes prefect.json, from which the viewer links back to the flow run.
    """
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        # The services' address may change, so the viewer looks it up on each request.
        page = flow_run_link(runs) if addresses(runs) is None else None
        (folder / "prefect.json").write_text(
            json.dumps({"flow_run": str(context.flow_run.id), "page": page}) + "\n",
            encoding="utf-8",
        )
    show_viewer_link(folder, runs, log)


def show_viewer_link(folder: Path, runs: Path, log: Callable[[str], object]) -> None:
    """Link the flow run's page to a run in the viewer, if the viewer is up."""
    if (link := viewer_link(folder, runs)) is not None:
        log(f"Viewer: {link}")
        create_link_artifact(
            link=link,
            link_text="The run in the viewer",
            key="viewer",
            description=f"Trajectories and curves: {link}",
        )


def viewer_link(folder: Path, runs: Path) -> str | None:
    """Return the address of a run's page in the viewer, or None while the viewer is down."""
    services = addresses(runs)
    viewer = infra_settings().viewer_page_url or (services.viewer_url if services else None)
    return f"{viewer.rstrip('/')}/runs/{folder.name}" if viewer else None


def description_tags(experiment: Experiment, folder: Path, runs: Path) -> dict[str, str]:
    """Return MLflow tags that describe the run in words and link back to Prefect."""
    page, viewer = flow_run_link(runs), viewer_link(folder, runs)
    world, evaluation = experiment.environment, experiment.evaluation
    lines = [
        # First, because MLflow collapses the rest.
        (f"[Flow run in Prefect]({page})" if page else "Flow run in Prefect: `make up` shows it")
        + " · "
        + (
            f"[trajectories in the viewer]({viewer})"
            if viewer
            else f"trajectories: `agentgym view`, `/runs/{folder.name}`"
        ),
        f"**{experiment.algorithm.name}** in **{world.name}**: trains on "
        f"`{selection_name(world.train_tasks)}` in {experiment.algorithm.steps} steps with the "
        f"horizon schedule `{experiment.curriculum.kind}`. Evaluated on "
        f"`{selection_name(evaluation.tasks)}`.",
        f"Policy: `{experiment.policy.model}`. Folder: `{folder}`. "
        f"To continue the run, start a run with the recipe `{folder / 'recipe.yaml'}`.",
    ]
    return {"mlflow.note.content": "\n\n".join(lines)}
