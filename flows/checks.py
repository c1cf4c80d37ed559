"""Checks before anything is started or built, e.g. for unknown task lists and missing models."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from pathlib import Path

from configs.experiment import Experiment, Rollout
from configs.files import parquet_files
from configs.infrastructure import InfraSettings, urls_of
from configs.model_folder import ModelError, check_model
from configs.placement import PlacementError
from configs.policy_gradient import PolicyGradient
from configs.recipe import RecipeError
from configs.study import Study
from configs.task_selection import TaskSelection
from environments.environment import TaskIndexError, UnknownWorldError
from environments.registry import check_name, check_task_list
from environments.selection import task_indices_of
from flows.model_check import fit_experiment
from tasks.training.local_trainer import placement_of, trainer_launch

ASK_S = 10.0
"""Timeout in seconds after which a server counts as unreachable."""


def check_experiment(
    experiment: Experiment, infrastructure: InfraSettings, here: bool = True
) -> None:
    """Check the names in a recipe and its compatibility with the infrastructure.

    Args:
        here: Whether the run starts on this machine, whose GPUs must then suffice.

    Raises:
        RecipeError: A world, a task list, a model's folder or a recording does not exist, a setting
            and a field exclude each other, or two processes claim one GPU. The message names the
            field.
    """
    if infrastructure.engine_sleep:
        check_engine_sleep(experiment.rollout)
    servers = infrastructure.engine_servers or infrastructure.engine_urls
    if servers and experiment.rollout.engine != "vllm":
        named = "SERVERS" if infrastructure.engine_servers else "URLS"
        raise RecipeError(
            f"rollout.engine: {experiment.rollout.engine} runs in the trainer's process, but "
            f"AGENTGYM_ENGINE_{named} names vLLM servers, which would replace it; set it to vllm, "
            f"or unset AGENTGYM_ENGINE_{named}"
        )
    if experiment.rollout.update_in_flight and not servers:
        raise RecipeError(
            "rollout.update_in_flight: true needs vLLM servers; set AGENTGYM_ENGINE_SERVERS or "
            "AGENTGYM_ENGINE_URLS, or set it to false"
        )
    if here:
        try:
            placement_of(infrastructure, experiment.policy.dtype)
        except PlacementError as problem:
            raise RecipeError(str(problem)) from None
    check_context_parallel(experiment, infrastructure)
    if experiment.policy.dtype == "float16":
        raise RecipeError(
            "policy.dtype: float16 cannot be trained, since its gradients would need a loss scale; "
            "set it to bfloat16 or float32"
        )
    policy, world = experiment.policy, experiment.environment
    check_world("environment.name", world.name)
    lists: dict[str, TaskSelection] = {
        "environment.train_tasks": world.train_tasks,
        "evaluation.tasks": experiment.evaluation.tasks,
    }
    lists |= {
        f"evaluation.final_tasks ({name})": name for name in experiment.evaluation.final_tasks
    }
    if policy.model == "starter":
        lists["policy.starter.tasks"] = policy.starter.tasks
    else:
        check_policy("policy.model", policy.model)
    algorithm = experiment.algorithm
    recorded = getattr(algorithm, "trajectories", None)
    if recorded is not None and not parquet_files(Path(recorded)):
        raise RecipeError(
            f"algorithm.trajectories: there is no parquet file at {recorded}; give a parquet file, "
            "or a folder of parquet files, e.g. runs/collected/NAME"
        )
    if (
        isinstance(algorithm, PolicyGradient)
        and (teacher := algorithm.reference_model()) is not None
    ):
        check_policy("algorithm.teacher", teacher)
    check_task_lists(world.name, lists, infrastructure)


def check_context_parallel(experiment: Experiment, infrastructure: InfraSettings) -> None:
    """Check that the launch file's context_parallel suits the recipe and the number of ranks.

    Raises:
        RecipeError: It does not. The message names the field.
    """
    launch, policy = trainer_launch(infrastructure), experiment.policy
    if (together := launch.context_parallel) == 1:
        return
    field, ranks = f"context_parallel: {together} of {infrastructure.launch}", launch.ranks
    if ranks % together:
        raise RecipeError(
            f"{field} does not divide the trainer's {ranks} processes; change it or "
            "AGENTGYM_TRAINER_PROCESSES"
        )
    if not isinstance(experiment.algorithm, PolicyGradient):
        raise RecipeError(
            f"{field} is for RL methods, and algorithm.name is {experiment.algorithm.name}; remove "
            "it from the launch file"
        )
    if policy.attn_implementation not in (None, "shared_prefix"):
        raise RecipeError(
            f"policy.attn_implementation: {policy.attn_implementation} excludes {field}; leave it "
            "out, or remove context_parallel from the launch file"
        )
    if policy.dtype == "float32" and policy.attn_implementation is None:
        raise RecipeError(
            f"policy.dtype: float32 excludes {field}; set it to bfloat16, or set "
            "policy.attn_implementation to shared_prefix"
        )


def check_engine_sleep(rollout: Rollout) -> None:
    """Check that the recipe allows the engine to sleep while the trainer updates.

    It does not if the engine has no sleep mode, or if episodes are in flight during the update.

    Raises:
        RecipeError: The message names the field, its value, and what to change.
    """
    if rollout.max_off_policy_steps:
        raise RecipeError(
            f"rollout.max_off_policy_steps: {rollout.max_off_policy_steps} keeps episodes running "
            "during the update, while AGENTGYM_ENGINE_SLEEP=true makes the engine sleep; set it to "
            "0, or unset AGENTGYM_ENGINE_SLEEP"
        )
    if rollout.engine != "vllm":
        raise RecipeError(
            f"rollout.engine: {rollout.engine} has no sleep mode; set it to vllm, or unset "
            "AGENTGYM_ENGINE_SLEEP"
        )


def check_study(
    study: Study, infrastructure: InfraSettings, only_seeds: Collection[int] | None = None
) -> None:
    """Check runs of a study and their models (see `check_experiment` and `fit_experiment`).

    Args:
        only_seeds: The seeds to check. None: all. Models of other seeds may be on other machines.

    Raises:
        RecipeError: A run is invalid. The message names its arm and seed. Or one of `only_seeds`
            is not a seed of the study.
    """
    for arm, seed in product(study.arms, study.chosen_seeds(only_seeds)):
        try:
            experiment = study.experiment(arm, seed)
            check_experiment(experiment, infrastructure)
            fit_experiment(experiment)
        except RecipeError as problem:
            raise RecipeError(f"arm {arm!r}, seed {seed}: {problem}") from None


def check_world(field: str, world: str) -> None:
    """Check that a world is registered.

    Raises:
        RecipeError: It is not. The message names the most similar world.
    """
    try:
        check_name(world)
    except UnknownWorldError as unknown:
        raise RecipeError(f"{field}: {unknown}") from None


def check_task_lists(
    world: str, lists: dict[str, TaskSelection], infrastructure: InfraSettings
) -> None:
    """Check that task lists exist in the world's package.

    A world that is served elsewhere is not checked here; its servers are asked later.

    Args:
        lists: Task selection by the name of its field, e.g. "evaluation.tasks". The servers check
            task indices later.
        infrastructure: Settings that say whether the world is served elsewhere.

    Raises:
        RecipeError: A list or a goal does not exist.
    """
    if urls_of(infrastructure, world):
        return
    for field, name in lists.items():
        if not isinstance(name, str):
            try:
                task_indices_of(world, name)
            except TaskIndexError as problem:
                raise RecipeError(f"{field}: {problem}") from None
            continue
        try:
            check_task_list(world, name)
        except KeyError as problem:
            raise RecipeError(
                f"{field}: {problem.args[0]}. `agentgym tasks {world}` describes the lists."
            ) from None


def check_policy(field: str, model: str) -> None:
    """Check that a model's folder exists.

    Raises:
        RecipeError: It does not. The message begins with `field`.
    """
    try:
        check_model(model)
    except ModelError as problem:
        raise RecipeError(f"{field}: {problem}") from None


def served_model(url: str) -> str | None:
    """Return the model name or folder that a vLLM server serves, or None if it reports none.

    Args:
        url: Base URL of the server, without /v1.

    Raises:
        RecipeError: The server is unreachable, or is not a vLLM server.
    """
    import asyncio

    import msgspec

    from tasks.inference.engine import EngineError
    from tasks.inference.vllm_client import ServerUnavailableError, VllmClient

    try:
        return asyncio.run(VllmClient(url, ASK_S).model()).root
    except (ServerUnavailableError, EngineError, msgspec.DecodeError, IndexError) as problem:
        raise RecipeError(
            f"vllm: no vLLM server answers at {url}: {problem}; check the address"
        ) from None
