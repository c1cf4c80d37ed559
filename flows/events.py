"""Events of runs that Prefect's automations can react to.

Prefect adds the flow run, its deployment and its tags to each event.
"""

from __future__ import annotations

from typing import Literal

from prefect.events import emit_event

from tasks.tracking.run_folder import RunFolder

Event = Literal["agentgym.run.collapsed", "agentgym.challenger.promoted"]


def announce(event: Event, recipe: str, **payload: str | int | float) -> None:
    """Emit an event about a recipe, with the resource id `agentgym.recipe.NAME`."""
    resource = {"prefect.resource.id": f"agentgym.recipe.{recipe}", "prefect.resource.name": recipe}
    emit_event(event, resource=resource, payload=payload)


def announce_collapse(run: RunFolder) -> None:
    """Announce that the training of a run collapsed, if it did."""
    if (fall := run.collapse()) is not None:
        announce(
            "agentgym.run.collapsed",
            run.experiment.name,
            folder=str(run.path),
            last_good_step=fall.last_good,
        )
