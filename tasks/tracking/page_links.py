"""Link runs' MLflow pages to Prefect and the viewer, including runs older than these pages.

    python -m tasks.tracking.page_links PREFECT_UI VIEWER

`make up` calls it. AGENTGYM_RUNS and AGENTGYM_MLFLOW_TRACKING_URI set the runs folder and MLflow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from configs.infrastructure import infra_settings
from tasks.files import read_json
from tasks.tracking.outbox import SENT
from tasks.tracking.store import connect

NOTE, FLOW_RUN = "mlflow.note.content", "prefect_flow_run"


def links_line(folder: str, prefect: str | None, viewer: str | None) -> str:
    """Return the first line of a run's description.

    Args:
        folder: Name of the run's folder.
        prefect: Address of its flow run. None if Prefect has no page.
        viewer: Address of its page in the viewer. None if the viewer is not running.
    """
    links = [
        f"[Flow run in Prefect]({prefect})"
        if prefect
        else "Flow run in Prefect: `make up` shows it",
        f"[trajectories in the viewer]({viewer})"
        if viewer
        else f"trajectories: `agentgym view`, `/runs/{folder}`",
    ]
    return " · ".join(links)


def link_runs(tracking_uri: str, runs: Path, prefect_ui: str, viewer: str) -> int:
    """Write the current addresses to the descriptions of all runs and return how many changed.

    A description is kept if the user replaced its first line.
    """
    client, changed = connect(tracking_uri), 0
    for path in sorted(runs.glob(f"*/records/{SENT}")):
        folder, run_id = path.parent.parent, read_json(path).get("runs", {}).get("run")
        if run_id is None:
            continue
        try:
            tags = client.get_run(run_id).data.tags
        except Exception as problem:  # noqa: BLE001 - the run was deleted or is in another store
            print(
                f"{folder.name}: cannot update the links in its MLflow description: {problem}",
                file=sys.stderr,
            )
            continue
        first, _, rest = tags.get(NOTE, "").partition("\n")
        flow_run = read_json(folder / "prefect.json").get("flow_run")
        page = f"{prefect_ui}/runs/flow-run/{flow_run}" if flow_run else tags.get(FLOW_RUN)
        line = links_line(folder.name, page, f"{viewer}/runs/{folder.name}")
        if "Flow run in Prefect" in first and first != line:
            client.set_tag(run_id, NOTE, f"{line}\n{rest}")
            if page:
                client.set_tag(run_id, FLOW_RUN, page)
            changed += 1
    return changed


if __name__ == "__main__":
    SETTINGS = infra_settings()
    print(
        link_runs(str(SETTINGS.mlflow_tracking_uri), SETTINGS.runs.absolute(), *sys.argv[1:]),
        "descriptions with updated links",
    )
