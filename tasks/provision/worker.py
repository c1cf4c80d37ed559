"""Prefect's process worker, fixed so that a flow run can be cancelled more than once.

    python -m tasks.provision.worker start --pool NAME [OPTION OF prefect worker start ...]

The worker of Prefect 3.7.7 cancels a flow run only once in the worker's lifetime. It also misses a
cancellation whose event arrives while the process is being started. This worker asks the server for
cancelled runs at every poll, and can cancel a retried run again.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any
from uuid import UUID

import anyio.abc
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.runner import Runner
from prefect.workers import process
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

GRACE_S = 15.0
"""Seconds that a cancelled run has to end what it started, before it is killed."""


class CancellingRunner(Runner):
    """Starts the processes of flow runs and ends those of cancelled runs."""

    async def _cancel_run(self, flow_run: FlowRun | UUID, state_msg: str | None = None) -> None:
        identifier = flow_run if isinstance(flow_run, UUID) else flow_run.id
        if identifier in self._cancelling_flow_run_ids:
            return
        try:
            await super()._cancel_run(flow_run, state_msg)
        finally:
            # Prefect keeps the id and would ignore later cancellations.
            self._cancelling_flow_run_ids.discard(identifier)

    async def _kill_process(self, pid: int, grace_seconds: float = GRACE_S) -> None:
        await super()._kill_process(pid, min(grace_seconds, GRACE_S))

    async def _mark_flow_run_as_cancelled(
        self, flow_run: FlowRun, state_updates: dict[str, Any] | None = None
    ) -> bool:
        """Mark the flow run as cancelled unless it has been retried meanwhile."""
        now = await self._state(flow_run)
        if now is not None and not (now.is_cancelling() or now.is_crashed()):
            return now.is_cancelled()
        return await super()._mark_flow_run_as_cancelled(flow_run, state_updates)

    async def _propose_crashed_state(self, flow_run: FlowRun, message: str) -> State[Any] | None:
        """Mark the run as crashed unless a cancellation's signal ended its process."""
        if await self.is_cancelled(flow_run):
            return None
        return await super()._propose_crashed_state(flow_run, message)

    async def is_cancelled(self, flow_run: FlowRun) -> bool:
        """Return whether a flow run without a process was cancelled; mark it as Cancelled if so."""
        now = await self._state(flow_run)
        if now is not None and now.is_cancelling():
            await self._mark_flow_run_as_cancelled(flow_run)
        return now is not None and (now.is_cancelling() or now.is_cancelled())

    async def _state(self, flow_run: FlowRun) -> State[Any] | None:
        try:
            return (await self._client.read_flow_run(flow_run.id)).state
        except Exception:  # noqa: BLE001 - deleted, or the server is away: Prefect's own calls that follow log it
            return None


class CancellingWorker(ProcessWorker):
    """Polls for runs to start and for runs to cancel."""

    type = "process"
    _runner: CancellingRunner

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ended: set[UUID] = set()

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Cancel the runs to be cancelled, then start the runs that are due."""
        assert self._runs_task_group is not None
        ended = set(self._ended)
        for run in await self._cancelling():
            if run.id in self._runner._flow_run_process_map:
                self._runs_task_group.start_soon(self._runner._cancel_run, run.id)
            elif run.id in ended or await self._has_not_begun(run):
                await self._runner.is_cancelled(run)
        self._ended -= ended
        return await super().get_and_submit_flow_runs()

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run a flow run's process to its end."""
        try:
            return await super().run(flow_run, configuration, task_status)
        finally:
            self._ended.add(flow_run.id)

    async def _propose_crashed_state(
        self, flow_run: FlowRun, message: str, client: PrefectClient | None = None
    ) -> None:
        """Mark the run as crashed unless it was cancelled before its process was started."""
        if not await self._runner.is_cancelled(flow_run):
            await super()._propose_crashed_state(flow_run, message, client)

    async def _cancelling(self) -> list[FlowRun]:
        state = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING]))
        pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[self._work_pool_name]))
        return await self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=state), work_pool_filter=pool
        )

    async def _has_not_begun(self, flow_run: FlowRun) -> bool:
        """Return whether the flow run was cancelled while it was scheduled.

        Prefect mistakes the process of an earlier attempt for one that must be ended.
        """
        states = sorted(
            await self.client.read_flow_run_states(flow_run.id), key=lambda state: state.timestamp
        )
        return len(states) > 1 and states[-2].is_scheduled()


def main() -> None:
    """Run `prefect worker` with this worker class instead of Prefect's."""
    from prefect.cli import app
    from prefect.utilities.dispatch import register_type

    process.Runner = CancellingRunner  # type: ignore[attr-defined]  # an import that Prefect does not export
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Prefect warns that the type "process" is registered again
        register_type(CancellingWorker)
    sys.argv[1:1] = ["worker"]
    app()


if __name__ == "__main__":
    main()
