"""Names of flow runs in Prefect: one that says what differs, unless a person has typed another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

_TWO_WORDS = re.compile(r"[a-z]+\d*-[a-z]+\d*(-[a-z])?")


def named_by(describe: Callable[[Mapping[str, Any]], str]) -> Callable[[], str]:
    """A `flow_run_name` for Prefect, which asks for it when the flow begins.

    Args:
        describe: Makes a name of the flow's parameters.
    """

    def name() -> str:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        return chosen_name(context.flow_run, describe(context.parameters or {}))

    return name


def chosen_name(run: FlowRun, description: str) -> str:
    """The name of a flow run.

    Prefect gives every run a name of two words ("brave-otter"); who triggers a deployment may type another. A run that a person cannot
    have named takes the description. A typed name is kept. Two words may be either, and stay in front of the description.
    """
    typed_by_nobody = run.deployment_id is None or run.auto_scheduled or run.parent_task_run_id is not None
    if typed_by_nobody:
        return description
    return f"{run.name}: {description}" if _TWO_WORDS.fullmatch(run.name) else run.name
