"""Task lists as MLflow datasets: the tasks that a run trains and is evaluated on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.tracking.store import Store


@dataclass(frozen=True, slots=True)
class TaskListEntry:
    """A task list as recorded in MLflow.

    Attributes:
        version: Version of the world. The same index may be another task in another version.
        context: Whether the run trains or is evaluated on it.
        n_tasks: Number of tasks used.
        digest: Hash of world, version and the task indices in order, 12 hex digits.
    """

    world: str
    version: str
    name: str
    context: Literal["training", "evaluation"]
    n_tasks: int
    digest: str

    @classmethod
    def of(
        cls,
        world: str,
        version: str,
        name: str,
        context: Literal["training", "evaluation"],
        tasks: Sequence[int],
    ) -> TaskListEntry:
        """Create the entry of a list with the task indices `tasks`."""
        digest = hashlib.sha256(json.dumps([world, version, list(tasks)]).encode()).hexdigest()[:12]
        return cls(world, version, name, context, len(tasks), digest)


def log_task_lists(store: Store, run_id: str, entries: Sequence[TaskListEntry]) -> None:
    """Store task lists as inputs of a run. Lists that are already stored are skipped."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    inputs = []
    for entry in entries:
        source = json.dumps({"world": entry.world, "version": entry.version, "list": entry.name})
        profile = json.dumps({"num_tasks": entry.n_tasks})
        dataset = Dataset(
            f"{entry.world} {entry.name}", entry.digest, "task list", source, profile=profile
        )
        inputs.append(DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, entry.context)]))
    store.client.log_inputs(run_id, datasets=inputs)
