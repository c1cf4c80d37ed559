"""Task lists as MLflow's datasets: which tasks a run learnt from and was measured on, by name and digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.tracking.store import Store


@dataclass(frozen=True, slots=True)
class TaskListEntry:
    """A task list as MLflow knows it.

    Attributes:
        world: Name of the world.
        version: The world's; the same index may mean another task in another version.
        name: Name of the list.
        context: What the run used it for.
        n_tasks: How many of its tasks were used.
        digest: Of world, version and the task indices in order, 12 hex digits.
    """

    world: str
    version: str
    name: str
    context: Literal["training", "evaluation"]
    n_tasks: int
    digest: str

    @classmethod
    def of(cls, world: str, version: str, name: str, context: Literal["training", "evaluation"], tasks: Sequence[int]) -> TaskListEntry:
        """The entry of a list whose task indices are `tasks`."""
        digest = hashlib.sha256(json.dumps([world, version, list(tasks)]).encode()).hexdigest()[:12]
        return cls(world, version, name, context, len(tasks), digest)


def log_task_lists(store: Store, run_id: str, entries: Sequence[TaskListEntry]) -> None:
    """Store task lists as a run's inputs; one that the run has already is not stored again."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    inputs = []
    for entry in entries:
        source = {"world": entry.world, "version": entry.version, "list": entry.name}
        dataset = Dataset(
            name=f"{entry.world} {entry.name}",
            digest=entry.digest,
            source_type="task list",
            source=json.dumps(source),
            profile=json.dumps({"num_tasks": entry.n_tasks}),
        )
        inputs.append(DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, entry.context)]))
    store.client.log_inputs(run_id, datasets=inputs)
