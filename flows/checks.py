"""What can be known to be wrong before anything is started or built: a task list that does not exist, a model that is not there."""

from __future__ import annotations

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, urls_of
from configs.model_folder import ModelError, check_model
from configs.recipe import RecipeError
from configs.study import Study
from configs.task_selection import TaskSelection
from environments.environment import TaskIndexError, UnknownWorldError
from environments.registry import check_name, check_task_list, task_indices_of
from flows.model_check import fit_experiment

ASK_S = 10.0
"""A server that has not answered by then is taken for gone."""


def check_experiment(experiment: Experiment, infrastructure: InfraSettings) -> None:
    """Checks the names in a recipe, and that it goes with where it would run.

    Raises:
        RecipeError: A name of a world, of a task list or of a model's folder is wrong; the message says which there are. Or a setting and
            a field exclude each other.
    """
    check_engine_sleep(experiment, infrastructure)
    policy, world = experiment.policy, experiment.environment
    check_world("environment.name", world.name)
    lists: dict[str, TaskSelection] = {"environment.train_tasks": world.train_tasks, "evaluation.tasks": experiment.evaluation.tasks}
    lists |= {f"evaluation.final_tasks ({name})": name for name in experiment.evaluation.final_tasks}
    if policy.model == "starter":
        lists["policy.starter.tasks"] = policy.starter.tasks
    else:
        check_policy("policy.model", policy.model)
        fit_experiment(experiment)
    check_task_lists(world.name, lists, infrastructure)


def check_engine_sleep(experiment: Experiment, infrastructure: InfraSettings) -> None:
    """Refuses to let an engine sleep that cannot, or that has episodes in flight while the trainer updates.

    Raises:
        RecipeError: The message names the field, its value, and what to change.
    """
    if not infrastructure.engine_sleep:
        return
    rollout = experiment.rollout
    if rollout.max_off_policy_steps:
        raise RecipeError(
            f"rollout.max_off_policy_steps: {rollout.max_off_policy_steps} keeps episodes in flight while the trainer updates, when "
            "AGENTGYM_ENGINE_SLEEP=true puts the engine to sleep; set it to 0, or unset AGENTGYM_ENGINE_SLEEP"
        )
    if rollout.engine != "vllm":
        raise RecipeError(f"rollout.engine: {rollout.engine} has no sleep mode; set it to vllm, or unset AGENTGYM_ENGINE_SLEEP")


def check_study(study: Study, infrastructure: InfraSettings) -> None:
    """Checks the names in every arm of a study; see `check_experiment`.

    Raises:
        RecipeError: One is wrong; the message names the arm.
    """
    for arm in study.arms:
        try:
            check_experiment(study.experiment(arm, study.seeds[0]), infrastructure)
        except RecipeError as problem:
            raise RecipeError(f"arm {arm!r}: {problem}") from None


def check_world(field: str, world: str) -> None:
    """Looks a world's name up.

    Raises:
        RecipeError: No world has it; the message names the nearest one.
    """
    try:
        check_name(world)
    except UnknownWorldError as unknown:
        raise RecipeError(f"{field}: {unknown}") from None


def check_task_lists(world: str, lists: dict[str, TaskSelection], infrastructure: InfraSettings) -> None:
    """Looks task lists up in what the world's package says of itself; servers that run elsewhere are asked later, by who needs them.

    Args:
        world: Its name.
        lists: Where tasks are named, e.g. "evaluation.tasks", to what names them; whether indices exist is left to the servers.
        infrastructure: Says whether the world is served elsewhere.

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
            raise RecipeError(f"{field}: {problem.args[0]}. `python -m environments tasks {world}` says what each holds.") from None


def check_policy(field: str, model: str) -> None:
    """Looks whether a model's folder is there.

    Raises:
        RecipeError: It is not; the message begins with `field`.
    """
    try:
        check_model(model)
    except ModelError as problem:
        raise RecipeError(f"{field}: {problem}") from None


def served_model(url: str) -> str | None:
    """The name or folder that a vLLM server was started with; None where it does not tell.

    Args:
        url: Its base URL, without /v1.

    Raises:
        RecipeError: It is not there, or is no vLLM server.
    """
    import asyncio

    import msgspec

    from tasks.inference.engine import EngineError
    from tasks.inference.vllm_client import ServerUnavailableError, VllmClient

    try:
        return asyncio.run(VllmClient(url, ASK_S).model()).root
    except (ServerUnavailableError, EngineError, msgspec.DecodeError, IndexError) as problem:
        raise RecipeError(f"--vllm: {url} is no vLLM server that answers: {problem}") from None
