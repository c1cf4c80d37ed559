"""The pipeline in Python: train, evaluate and collect, and read the results as data frames.

    from flows.api import evaluate, train

    run = train("quickstart", {"algorithm.steps": 60})
    print(run.last.success, run.metrics()["rollout/success"])
    print(evaluate("searchqa", run.checkpoint).success())

Each function does what its command does (`agentgym train`, `evaluate`, `collect`): it continues
interrupted work and reuses finished work. Settings come from AGENTGYM_... variables, see
configs/infrastructure.py. Functions that only read (`load_run`, `load_evaluation`) start nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from configs.collection import Source
from flows.child_modules import share_modules
from flows.command import LocalRecords, set_engine_variables
from flows.requests import collection_request, evaluation_request, request_fields, trained_recipe
from flows.results import (
    CollectedEpisodes,
    Evaluation,
    TrainingRun,
    load_evaluation,
    load_run,
)

__all__ = [
    "CollectedEpisodes",
    "Evaluation",
    "Policy",
    "Source",
    "TrainingRun",
    "collect",
    "evaluate",
    "load_evaluation",
    "load_run",
    "train",
]

Policy = str | Path | Source
"""A checkpoint's folder, a Hugging Face name, "oracle", "random", or any `Source`."""
Tasks = str | Sequence[int | str]
"""Name of a task list, a file of indices, or task indices."""
Result = TypeVar("Result")

SCRIPTED = ("oracle", "random")


def train(
    recipe: str | Path = "quickstart", overrides: Mapping[str, Any] | None = None
) -> TrainingRun:
    """Train an agent by a recipe and evaluate it on held-out tasks.

    Args:
        recipe: Name of a recipe in configs/, or the path of a YAML file.
        overrides: New values by dotted field name, e.g. {"algorithm.steps": 60}.

    Raises:
        RecipeError: A value is invalid. Nothing has been started.
    """
    named = dict(overrides or {})

    def run() -> TrainingRun:
        from flows.scaling_inter import scaling_inter

        return scaling_inter(str(recipe), overrides=named)

    return _run(run)


def evaluate(
    world: str,
    policy: Policy,
    *,
    tasks: Sequence[Tasks] | str | None = None,
    horizons: Sequence[int] | None = None,
    temperatures: Sequence[float] | None = None,
    samples: int = 1,
    n_tasks: int | None = None,
    seed: int = 0,
    against: Evaluation | Path | str | None = None,
    folder: Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a policy, for every combination of task list, horizon and temperature.

    For a checkpoint, the defaults of tasks, horizons and temperatures are those of its run.

    Args:
        world: A world's name, or module:Class.
        policy: The policy to evaluate.
        tasks: Task lists. One name stands for a single list.
        horizons: Turn limits.
        temperatures: Sampling temperatures. 0 is greedy.
        samples: Episodes per task.
        n_tasks: Use only the first n tasks of each list.
        seed: Seed of the sampling.
        against: Another evaluation, or its folder. Success is compared with it, paired by task.
        folder: Folder of episodes and tables. By default a folder below runs/evaluated.
        overrides: Fields of the recipe's parts rollout and environment by dotted name.

    Raises:
        RecipeError: A value is invalid. Nothing has been started.
        IncompleteEvaluationError: Infrastructure failures broke episodes. The same call plays them.
    """
    given = _given(world, policy, samples, n_tasks, seed, overrides)
    lists = (tasks,) if isinstance(tasks, str) else tasks
    given |= {"tasks": lists, "horizons": horizons, "temperatures": temperatures}
    grid = evaluation_request(given, trained_recipe(given["source"]))
    other = (
        against.folder if isinstance(against, Evaluation) else Path(against) if against else None
    )

    def run() -> Evaluation:
        from flows.evaluate import evaluate as flow

        return flow(grid, Path(folder) if folder else None, other)

    return _run(run)


def collect(
    world: str,
    policy: Policy,
    *,
    tasks: Tasks = "train",
    horizon: int | None = None,
    temperature: float | None = None,
    samples: int = 1,
    n_tasks: int | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> CollectedEpisodes:
    """Collect trajectories of a policy. The arguments are those of `evaluate`, with one value each.

    Raises:
        RecipeError: A value is invalid. Nothing has been started.
        MissingEpisodesError: Infrastructure failures broke episodes. The same call plays them.
    """
    given = _given(world, policy, samples, n_tasks, seed, overrides)
    given |= {"tasks": tasks, "horizon": horizon, "temperature": temperature}
    collection = collection_request(given, trained_recipe(given["source"]))

    def run() -> CollectedEpisodes:
        from flows.collect import collect as flow

        return flow(collection, Path(folder) if folder else None)

    return _run(run)


def _given(
    world: str,
    policy: Policy,
    samples: int,
    n_tasks: int | None,
    seed: int,
    overrides: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the fields that collections and evaluations share."""
    if isinstance(policy, Source):
        source = policy.model_dump(exclude_unset=True)
    elif policy in SCRIPTED:
        source = {"kind": policy}
    else:
        source = {"kind": "model", "model": str(policy)}
    return request_fields(
        world, source, overrides or {}, samples=samples, n_tasks=n_tasks, seed=seed
    )


_opening = threading.Lock()
_records: list[LocalRecords] = []


def _run(flow: Callable[[], Result]) -> Result:
    """Run a flow with its records, as its command does.

    A notebook runs an event loop in the main thread, and flows run loops of their own. There the
    flow runs in another thread.
    """
    _open_records()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return flow()
    return _in_thread(flow)


def _open_records() -> None:
    """Open the records of this process's flows at the first call (see `LocalRecords`).

    A program that has imported Prefect before has its own settings, which apply.
    """
    with _opening:
        share_modules(os.path.abspath(sys.path[0]))  # the script's folder, where its world may be
        if _records or "prefect" in sys.modules:
            return
        set_engine_variables()
        records = LocalRecords(handle_sigterm=False)
        records.__enter__()
        _records.append(records)
        atexit.register(records.__exit__, None, None, None)


def _in_thread(flow: Callable[[], Result]) -> Result:
    """Run a flow in a thread. An interrupt of the caller also interrupts the flow."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(flow())
        except BaseException as problem:  # noqa: BLE001 - the caller gets it
            future.set_exception(problem)

    thread = threading.Thread(target=run, name="flow", daemon=True)
    thread.start()
    while True:
        try:
            return future.result()
        except KeyboardInterrupt:
            if future.done():
                raise
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
