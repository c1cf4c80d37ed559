"""A run while it goes on: its folder, its records, its clock and its bar, and the servers and processes that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from environments.door import check_same, enter, task_indices, task_tags
from flows.progress import RunBar
from tasks.curriculum.horizon import Phase
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.inference import launch_command
from tasks.provision.environment_servers import environment_replicas
from tasks.provision.replica_set import ReplicaSet, local_replicas
from tasks.tracking.run_folder import RunFolder
from tasks.tracking.tracker import Tracker
from tasks.training.collapse import COLLAPSED, TrainingCollapsed, collapse_note, last_good_step, verdict_at
from tasks.training.job import Evaluated, Event, Saved, StepDone, TrainerJob
from tasks.training.process import TrainerProcess


@dataclass(slots=True)
class Run:
    """One experiment being carried out.

    Attributes:
        experiment: The recipe.
        infrastructure: Where it runs.
        folder: What is finished, and what the run leaves behind.
        tracker: MLflow.
        mlflow_run: The parent run's id in MLflow.
        clock: Where the time goes.
        bar: What a person at the terminal sees.
        checkpoints: Step to the checkpoint's event, of this process's lifetime.
    """

    experiment: Experiment
    infrastructure: InfraSettings
    folder: RunFolder
    tracker: Tracker
    mlflow_run: str
    clock: TimeBreakdown
    bar: RunBar
    checkpoints: dict[int, Saved] = field(default_factory=dict)

    def follow(self, events: Iterable[Event], mlflow_run: str) -> None:
        """Records and shows what the trainer reports, to the end of its present command."""
        for event in events:
            self.bar.show(event)
            match event:
                case StepDone():
                    self.folder.add_metrics(event.step, event.metrics)
                    self.tracker.log_metrics(mlflow_run, event.metrics | {"collapse": self._judge(event.step)}, event.step)
                    self.clock.add("rollouts", event.metrics.get("rollout/seconds", 0.0))
                    self.clock.add("updates", event.metrics["update/seconds"])
                    self.clock.add("weight sync", event.metrics["sync/seconds"])
                case Saved():
                    self.checkpoints[event.step] = event
                    self.clock.add("checkpoints", event.seconds)
                case Evaluated():
                    self.clock.add("evaluation", event.seconds)

    def _judge(self, step: int) -> float:
        """The level of the verdict after a step: 0 healthy, 1 strained, 2 collapsed.

        Raises:
            TrainingCollapsed: It collapsed, and the recipe says that it is to end then.
        """
        history = {earlier: metrics for earlier, metrics in self.folder.metrics().items() if earlier <= step}
        level = verdict_at(history, step).level
        if level == COLLAPSED and self.experiment.algorithm.on_collapse != "report":
            raise TrainingCollapsed(collapse_note(history), last_good_step(history))
        return level


@dataclass(frozen=True, slots=True)
class TaskLists:
    """The tasks of a run, as its environment servers name them.

    Attributes:
        instruction: What the agent is told first.
        identity: Name and version of the world; only the name where the servers tell no version.
        success_score: The score from which an episode is a success.
        train: Task indices to learn from.
        evaluation: Task indices to measure on.
        tags: Task index to a tag, such as "depth 2", by which success is broken down; not every world has tags.
    """

    instruction: str
    identity: str
    success_score: float
    train: list[int]
    evaluation: list[int]
    tags: dict[int, str]


@contextmanager
def opened_run(experiment: Experiment, infrastructure: InfraSettings, clock: TimeBreakdown) -> Iterator[Run]:
    """Claims the run's folder and opens its records; ends them with how the block ended."""
    folder = RunFolder(infrastructure.runs, experiment)
    uri = infrastructure.mlflow_tracking_uri or f"sqlite:///{infrastructure.runs.absolute() / 'mlflow.db'}"
    with folder.claimed(), Tracker(uri, experiment.name) as tracker, RunBar(experiment.algorithm.steps) as bar:
        with clock.part("MLflow"):
            parent = tracker.start_run(
                folder.fingerprint,
                f"{experiment.environment.name} {experiment.curriculum.kind} seed {experiment.seeds.training}",
                experiment.model_dump(mode="json"),
                {"environment": experiment.environment.name, "algorithm": experiment.algorithm.name, "folder": str(folder.path)},
            )
        try:
            yield Run(experiment, infrastructure, folder, tracker, parent, clock, bar)
        except BaseException as problem:
            tracker.end_run(parent, "FAILED" if isinstance(problem, Exception) else "KILLED")
            raise
        tracker.end_run(parent)
        with clock.part("MLflow"):
            tracker.flush()


@contextmanager
def environment_servers(run: Run) -> Iterator[ReplicaSet | None]:
    """The servers of the run's environment: those that the settings name (then None), else ones of its own."""
    infrastructure = run.infrastructure
    if infrastructure.environment_urls:
        yield None
        return
    servers = environment_replicas(
        run.experiment.environment.name,
        infrastructure.environment_servers,
        rules=run.experiment.environment.rules,
        backend="container" if infrastructure.environment_backend == "container" else "local",
        image=infrastructure.environment_image,
    )
    with run.clock.part("environment servers"):
        servers.__enter__()
    try:
        yield servers
    finally:
        servers.close()


def task_lists(run: Run, servers: ReplicaSet | None) -> TaskLists:
    """Asks the environment servers for the run's tasks.

    Raises:
        EnvironmentCallError: A server does not answer; WrongWorldError: one hosts something else than the recipe names, or than the run was
            begun on.
    """
    experiment, urls = run.experiment, environment_urls(run, servers)

    async def ask() -> TaskLists:
        environment, evaluation = experiment.environment, experiment.evaluation
        world = await enter(urls, environment)
        check_same(run.folder.path / "world", world.identity, "run")
        train = await task_indices(urls, environment, environment.train_tasks, "environment.train_tasks")
        held_out = await task_indices(urls, environment, evaluation.tasks, "evaluation.tasks")
        tags = await task_tags(urls, evaluation.tasks)
        return TaskLists(
            world.instruction,
            world.identity,
            world.success_score,
            train[: environment.n_train_tasks],
            held_out[: evaluation.n_tasks],
            tags,
        )

    return asyncio.run(ask())


def environment_urls(run: Run, servers: ReplicaSet | None) -> tuple[str, ...]:
    """Addresses of the run's environment servers: its own, or those of the settings."""
    return servers.urls if servers else tuple(run.infrastructure.environment_urls)


@contextmanager
def engine_servers(run: Run, policy: str) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """The vLLM servers that generate for the run, and what raises when one is gone for good; none where the trainer holds the engine."""
    infrastructure, rollout = run.infrastructure, run.experiment.rollout
    if infrastructure.engine_urls or not infrastructure.engine_servers:
        yield list(infrastructure.engine_urls), lambda: None
        return
    commands = [
        launch_command.command(
            policy,
            context_length=rollout.trajectory_tokens,
            max_num_seqs=rollout.max_num_seqs or rollout.max_concurrent_episodes,
            dtype=run.experiment.policy.dtype,
            gpu_memory_fraction=infrastructure.engine_memory_fraction,
            cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
            gpu=gpu,
            weights=infrastructure.engine_weights,
        )
        for gpu in infrastructure.engine_gpus or [""] * infrastructure.engine_servers
    ]
    servers = local_replicas("vllm", commands, start_deadline_s=infrastructure.trainer_start_seconds)
    with run.clock.part("vLLM servers"):
        servers.__enter__()
    try:
        yield list(servers.urls), servers.check
    finally:
        servers.close()


@contextmanager
def trainer_process(run: Run, policy: str, tasks: TaskLists, servers: ReplicaSet | None, schedule: list[Phase]) -> Iterator[TrainerProcess]:
    """The run's trainer, loaded and ready."""
    infrastructure = run.infrastructure
    with engine_servers(run, policy) as (engine_urls, check_engines):
        job = TrainerJob(
            experiment=run.experiment,
            fingerprint=run.folder.fingerprint,
            policy=policy,
            folder=run.folder.path,
            environment_urls=list(environment_urls(run, servers)),
            environment_identity=tasks.identity if run.experiment.environment.dialect == "ours" else "",
            success_score=tasks.success_score,
            instruction=tasks.instruction if run.experiment.policy.instruction else None,
            train_tasks=tasks.train,
            phase_ends=[phase.end_step for phase in schedule],
            engine_memory_fraction=infrastructure.engine_memory_fraction,
            engine_cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
            engine_urls=engine_urls,
            engine_weights=infrastructure.engine_weights,
            socket="",
        )

        def check() -> None:
            if servers:
                servers.check()
            check_engines()

        with TrainerProcess(job, infrastructure, check) as trainer:
            run.bar.doing("starting the trainer")
            with run.clock.part("trainer start"):
                ready = trainer.ready()
            for note in ready.notes:
                run.bar.say(f"Passed over a checkpoint: {note}")
            if ready.step:
                run.bar.say(f"Continuing after step {ready.step}, from its checkpoint.")
                run.bar.done_before(ready.step)
            yield trainer
            with run.clock.part("trainer end"):
                trainer.close()
