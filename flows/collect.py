"""Collect trajectories of any policy as parquet, for imitation, preference learning and evaluation.

    agentgym collect ENVIRONMENT (--model NAME | --vllm URL,... | --openai URL | --oracle) [options]

The same command continues an interrupted collection. Episodes on disk are not played again.
"""

from __future__ import annotations

if __name__ == "__main__":
    from flows.cli import run

    run("collect")  # ends the process before the slow imports below

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from configs.collection import Collection
from configs.infrastructure import infra_settings
from configs.task_selection import selection_name
from flows.collection_session import CollectionSession, folder_name
from flows.killed_flow_runs import note_flow_run
from flows.model_check import fit_source
from flows.requests import completed
from flows.results import CollectedEpisodes
from flows.run_names import named_by


def described(parameters: Mapping[str, Any]) -> str:
    """Return the name of a collection's flow run, e.g. "textcraft wood-test by step-000040"."""
    collection: Collection = parameters["collection"]
    return f"{collection.environment.name} {selection_name(collection.tasks)} by {collection.source.label}"


@flow(name="collect", on_running=[note_flow_run], flow_run_name=named_by(described))
def collect(collection: Collection, folder: Path | None = None) -> CollectedEpisodes:
    """Collect trajectories of a policy.

    Args:
        collection: Policy, world, tasks and settings of the collection.
        folder: Where the parquet parts go. By default a folder below runs/collected that is named
            after the collection.

    Raises:
        MissingEpisodesError: Infrastructure failures broke episodes. Running the same collection
            again plays them.
    """
    infrastructure, collection = infra_settings(), completed(collection)
    collection = collection.model_copy(
        update={"rollout": fit_source(collection.source, collection.rollout)}
    )
    folder = folder or infrastructure.runs / "collected" / folder_name(collection)
    with CollectionSession(collection, infrastructure) as session:
        tally = session.collect(collection, folder)
    create_markdown_artifact(
        f"{tally.summary()}\n\n`{folder}`", key="collection", description=str(folder)
    )
    get_run_logger().info("%s: %s", folder, tally.summary())
    print(f"{tally.summary()}\n{folder}")
    tally.check_complete(folder)
    return CollectedEpisodes(folder.absolute(), collection)
