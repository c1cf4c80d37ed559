"""Mark flow runs whose process was killed, which Prefect would otherwise show as Running for ever.

The next command or the services do so. The hook `note_flow_run` records the process of each flow
that people start, in the folder `prefect/flow-runs` below the runs folder. For a deployment's run
it also starts heartbeats to the server, which may be on another machine: see
tasks/provision/heartbeats.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from configs.infrastructure import infra_settings
from tasks.files import read_json, replace_file
from tasks.provision.heartbeats import start_heartbeats
from tasks.provision.process import this_process
from tasks.provision.services import addresses
from tasks.tracking.owner import FLOW_RUNS, OWN_SERVER, notes_of_ended

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

SERVER_OF_THESE_RUNS = "RUNS_PREFECT_API_URL"
"""Variable with the address of the server that keeps its records in the runs folder.

Child processes inherit it.
"""


def serves_these_runs(api_url: str) -> None:
    """Declare that the server at this address keeps its records in the runs folder."""
    os.environ[SERVER_OF_THESE_RUNS] = api_url


_noted: list[str] = []


def recorded_flow_runs() -> list[str]:
    """Return the ids of the flow runs that this process runs or has run."""
    return list(_noted)


def note_flow_run(flow: Any, flow_run: Any, state: Any) -> None:
    """Record the process of a flow run, and start heartbeats for a deployment's run.

    A hook for `on_running`.
    """
    path = _folder() / f"{flow_run.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    life = flow_run.run_count + 1  # the flow run was read before Prefect counted this attempt
    replace_file(
        path, json.dumps({"owner": this_process(), "server": prefect_server(), "life": life})
    )
    _noted.append(str(flow_run.id))
    if flow_run.deployment_id is not None and flow_run.parent_task_run_id is None:
        start_heartbeats(str(flow_run.id))


def end_killed_flow_runs() -> list[str]:
    """Mark the flow runs whose process has ended, and all their subflows and tasks, as Crashed.

    Runs that were being cancelled are marked as Cancelled. Notes of flow runs that ended normally,
    or that another process has taken over, are removed.

    Returns:
        Ids of the flow runs that had been killed.
    """
    noted = notes_of_ended(infra_settings().runs.absolute(), prefect_server())
    gone = {path: life for path in noted if (life := _noted_life(path)) is not None}
    if not gone:  # the usual case, which must not import Prefect's client
        return []
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    ended = []
    with get_client(sync_client=True) as client:
        for path, life in gone.items():
            try:
                if _end(client, UUID(path.stem), life):
                    ended.append(path.stem)
            except ObjectNotFound:
                pass  # the server has deleted it
            if _noted_life(path) == life:  # otherwise a later attempt has begun meanwhile
                path.unlink(missing_ok=True)
    return ended


def _end(client: SyncPrefectClient, flow_run: UUID, life: int) -> bool:
    """Set the state of the flow run, and return whether this attempt was still unfinished."""
    from prefect.states import Cancelled, Crashed

    found = client.read_flow_run(flow_run)
    if (
        found.run_count != life
        or found.state is None
        or not (found.state.is_running() or found.state.is_cancelling())
    ):
        return False
    message = "The process was killed."
    state: State[Any] = (
        Cancelled(message=message) if found.state.is_cancelling() else Crashed(message=message)
    )
    _set_below(client, flow_run, state)
    client.set_flow_run_state(flow_run, state, force=True)
    return True


def _set_below(client: SyncPrefectClient, flow_run: UUID, state: State[Any]) -> None:
    """Set the state of all unfinished tasks and subflows of a flow run."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        FlowRunFilterParentFlowRunId,
    )

    for task in client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    ):
        if task.state is None or not task.state.is_final():
            client.set_task_run_state(task.id, state, force=True)
    for called in client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run])
        )
    ):
        if called.state is None or not called.state.is_final():
            _set_below(client, called.id, state)
            client.set_flow_run_state(called.id, state, force=True)


def _noted_life(path: Path) -> int | None:
    """Return the attempt number in a note, or None if the note is damaged."""
    life = read_json(path).get("life")
    return life if isinstance(life, int) else None


def prefect_server() -> str:
    """Return the Prefect server that keeps this process's records.

    It is OWN_SERVER, or the server's address. It is empty if Prefect starts a server for this
    process alone.
    """
    api_url = os.environ.get("PREFECT_API_URL", "")
    services = addresses(infra_settings().runs.absolute())
    ours = api_url == os.environ.get(SERVER_OF_THESE_RUNS) or (
        services is not None and api_url == services.prefect_api_url
    )
    return OWN_SERVER if ours else api_url


def _folder() -> Path:
    return infra_settings().runs.absolute() / FLOW_RUNS
