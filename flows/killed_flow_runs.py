"""Flow runs whose process was killed: Prefect shows them as running for ever, so the next command ends them.

A flow that starts notes its process in `prefect/flow-runs` of the runs' folder (`note_flow_run`, a hook of the flows that people start).
The process of a deployment's run is also spoken for at the server, which may be on another machine: see tasks/provision/heartbeats.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from configs.infrastructure import infra_settings
from tasks.provision.heartbeats import start_heartbeats
from tasks.provision.services import addresses
from tasks.tracking.owner import is_gone, this_process

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

OWN_SERVER = "of these runs"
"""Stands for any server over the Prefect database in the runs' folder: its address changes."""

SERVER_OF_THESE_RUNS = "RUNS_PREFECT_API_URL"
"""Variable that tells this process, and those that it starts, which server keeps its records in the runs' folder."""


def serves_these_runs(api_url: str) -> None:
    """Tells that the server at this address keeps its records in the runs' folder."""
    os.environ[SERVER_OF_THESE_RUNS] = api_url


def note_flow_run(flow: Any, flow_run: Any, state: Any) -> None:
    """Notes which process carries out a flow run, and has a deployment's spoken for; a hook for `on_running`."""
    path = _folder() / f"{flow_run.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"owner": this_process(), "server": prefect_server()}), encoding="utf-8")
    unfinished.replace(path)
    if flow_run.deployment_id is not None and flow_run.parent_task_run_id is None:
        start_heartbeats(str(flow_run.id))


def end_killed_flow_runs() -> list[str]:
    """Sets the flow runs that go on nowhere, and all below them, to Crashed; notes of what ended in order are removed.

    Returns:
        The ids of the flow runs that were noted and had been killed.
    """
    gone = [path for path in sorted(_folder().glob("*.json")) if _is_gone(path)]  # most often none: then Prefect's client is not loaded
    if not gone:
        return []
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    ended = []
    with get_client(sync_client=True) as client:
        for path in gone:
            try:
                if _crash(client, UUID(path.stem)):
                    ended.append(path.stem)
            except ObjectNotFound:
                pass  # deleted there
            path.unlink(missing_ok=True)
    return ended


def _crash(client: SyncPrefectClient, flow_run: UUID) -> bool:
    """Whether it had not ended. What it called is ended with it."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterParentFlowRunId
    from prefect.client.schemas.objects import State
    from prefect.states import Crashed

    state = client.read_flow_run(flow_run).state
    if state is not None and state.is_final():
        return False
    crashed: State[Any] = Crashed(message="Its process was killed.")
    for called in client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run]))):
        _crash(client, called.id)
    for task in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))):
        if task.state is None or not task.state.is_final():
            client.set_task_run_state(task.id, crashed, force=True)
    client.set_flow_run_state(flow_run, crashed, force=True)
    return True


def _is_gone(path: Path) -> bool:
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return noted["server"] == prefect_server() and is_gone(noted["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def prefect_server() -> str:
    """Which Prefect keeps this process's records: OWN_SERVER, or its address; empty where Prefect starts one for this process alone."""
    api_url = os.environ.get("PREFECT_API_URL", "")
    services = addresses(infra_settings().runs.absolute())
    ours = api_url == os.environ.get(SERVER_OF_THESE_RUNS) or (services is not None and api_url == services.prefect_api_url)
    return OWN_SERVER if ours else api_url


def _folder() -> Path:
    return infra_settings().runs.absolute() / "prefect" / "flow-runs"
