"""Names of flow runs in Prefect: what distinguishes the run, unless a person has typed a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

_TWO_WORDS = re.compile(r"[a-z]+\d*-[a-z]+\d*(-[a-z])?")


def named_by(describe: Callable[[Mapping[str, Any]], str]) -> Callable[[], str]:
    """Return a `flow_run_name` for Prefect, which calls it when the flow begins.

    Args:
        describe: Makes a name from the flow's parameters.
    """

    def name() -> str:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        return chosen_name(context.flow_run, describe(context.parameters or {}))

    return name


def chosen_name(run: FlowRun, description: str) -> str:
    """Return the name of a flow run.

    Prefect gives every run a name of two words ("brave-otter"). A person who triggers a deployment
    may type another. The description replaces the name if no person can have typed it. A typed name
    is kept. A name of two words may be either, and is kept in front of the description.
    """
    typed_by_nobody = (
        run.deployment_id is None or run.auto_scheduled or run.parent_task_run_id is not None
    )
    if typed_by_nobody:
        return description
    return f"{run.name}: {description}" if _TWO_WORDS.fullmatch(run.name) else run.name
