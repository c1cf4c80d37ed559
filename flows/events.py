"""Events of runs that Prefect's automations can react to.

Prefect adds the flow run, its deployment and its tags to each event.
"""

from __future__ import annotations

from typing import Literal

from prefect.assets import Asset, add_asset_metadata
from prefect.events import emit_event

from tasks.tracking.run_folder import RunFolder
from tasks.training.checkpoint import Checkpoint

Event = Literal["agentgym.run.collapsed", "agentgym.challenger.promoted"]
AssetKind = Literal["checkpoint", "champion", "report"]


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


def asset_of(name: str, kind: AssetKind) -> Asset:
    """Return the asset of a recipe or study. Each version of it is an event of this resource."""
    return Asset(key=f"agentgym://{name}/{kind}")


def describe_version(asset: Asset, checkpoint: Checkpoint, success: float) -> None:
    """Add a checkpoint to the event of the asset that the current task materialises.

    Args:
        checkpoint: Its new version.
        success: Held-out success, from 0 to 1.
    """
    version = {"folder": str(checkpoint.folder), "step": checkpoint.step}
    add_asset_metadata(asset, version | {"digest": checkpoint.digest, "success": success})
