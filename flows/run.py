"""A run in progress: its folder, records, timing, progress bar, servers and processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import msgspec

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, urls_of
from configs.placement import SHARED_FRACTION
from environments.handshake import check_same, task_indices, task_tags, verify_servers
from flows.accelerators import accelerators_held
from flows.flow_page import description_tags, flow_log, link_to_mlflow, link_to_viewer, tag_flow_run
from flows.model_check import loadable
from flows.page_progress import PageProgress
from flows.progress import RunBar
from flows.recorded_files import recorded_files
from flows.recorded_weights import check_start, record_weights
from flows.records import evaluations, lost_steps, open_tracker, phase_name
from flows.shared_storage import mirrored, shared_starter_policy
from flows.starter_policy import starter_policy
from flows.task_lists import TaskLists
from tasks.curriculum.horizon import Phase, phases
from tasks.evaluation.time_breakdown import TimeBreakdown
from tasks.inference.engine_servers import engine_replicas
from tasks.provision.environment_servers import environment_replicas
from tasks.provision.replica_set import Replicas
from tasks.starter.starter_policy import starter_name
from tasks.tracking.run_folder import FINISHED, RunFileError, RunFolder
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.runs import PARENT_RUN_TAG
from tasks.tracking.shared_storage import opened
from tasks.tracking.step_metrics_file import METRICS
from tasks.tracking.system_metrics import SystemMetrics
from tasks.tracking.tracker import Tracker
from tasks.training.checkpoint import steps_in
from tasks.training.collapse import (
    COLLAPSED,
    TrainingCollapsedError,
    collapse_note,
    last_good_step,
    verdict_at,
)
from tasks.training.left_out import left_out_warning
from tasks.training.local_trainer import starts_forks, trainer_launch
from tasks.training.messages import Evaluated, Event, Saved, StepDone, TrainerJob
from tasks.training.out_of_sync import out_of_sync_note
from tasks.training.trainer_client import TrainerLostError, TrainerProcess

WORLD = "world"
"""File in a run's folder with the identity of its world."""
RESTARTS = 10
"""Maximum number of restarts after a trainer node was lost. Then the run fails."""


@dataclass(slots=True)
class Run:
    """One experiment in progress.

    Attributes:
        infrastructure: Where it runs.
        folder: The recipe, and finished stages and results on disk.
        tracker: Writes to MLflow.
        mlflow_run: The parent run, as the tracker names it.
        clock: Time per activity.
        bar: Progress on the terminal.
        mirror: Copies the folder to shared storage, if the settings name one.
        done_at: Time in ms at which each step of this process finished.
        system: Measures the machine's load.
        load: Machine load during each step of this process.
    """

    infrastructure: InfraSettings
    folder: RunFolder
    tracker: Tracker
    mlflow_run: str
    clock: TimeBreakdown
    bar: RunBar
    mirror: RunMirror | None = None
    done_at: dict[int, int] = field(default_factory=dict)
    system: SystemMetrics | None = None
    load: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        """The recipe."""
        return self.folder.experiment

    def follow(self, events: Iterable[Event], mlflow_run: str) -> None:
        """Record and show the trainer's events until its current command ends.

        A step is shown at once but is final only when a checkpoint holds it. MLflow is append-only,
        so metrics are sent only once their checkpoint exists.
        """
        for event in events:
            self.bar.show(event)
            match event:
                case StepDone():
                    self.folder.add_metrics(event.step, event.metrics)
                    self.done_at[event.step] = int(time.time() * 1000)
                    if self.system is not None:
                        self.load[event.step] = self.system.take()
                    self.clock.add("rollouts", event.metrics.get("rollout/seconds", 0.0))
                    self.clock.add("updates", event.metrics["update/seconds"])
                    self.clock.add("weight sync", event.metrics["sync/seconds"])
                    if warning := left_out_warning(event.step, event.metrics):
                        self.bar.say(warning)
                    if note := out_of_sync_note(event.step - 1, event.metrics):
                        self.bar.say(note)
                    self._end_if_collapsed(event.step)
                case Saved():
                    self.record_steps(mlflow_run, event.step)
                    self.clock.add("checkpoints", event.seconds)
                case Evaluated():
                    self.clock.add("evaluation", event.seconds)
            if self.mirror is not None and isinstance(event, StepDone | Saved | Evaluated):
                self.mirror.wake()

    def record_steps(self, mlflow_run: str, until: int) -> None:
        """Log the unlogged steps up to `until` (counted from 1) to MLflow, with collapse levels."""
        history = self.folder.metrics()
        for step in sorted(history):
            if step <= until and not self.tracker.has_metrics(step):
                level = verdict_at(history, step).level
                self.tracker.log_metrics(
                    mlflow_run,
                    history[step] | {"collapse": level},
                    step,
                    time=self.done_at.get(step),
                )
                if step in self.load:
                    self.tracker.log_metrics(
                        mlflow_run, self.load[step], step, of="system", time=self.done_at.get(step)
                    )

    def record_evaluations(self) -> None:
        """Log evaluations that MLflow lacks because of a kill just after their file was written."""
        for name, result in evaluations(self.folder).items():
            of = f"evaluation {name}"
            if not self.tracker.has_metrics(result.step, of):
                self.tracker.log_metrics(self.mlflow_run, result.metrics(), result.step, of=of)

    def next_phase(self) -> Phase | None:
        """Return the first unfinished phase, as far as known, or None if all are finished."""
        schedule = phases(self.experiment, self.folder.metrics())
        return next(
            (phase for phase in schedule if not self.folder.is_done(phase_name(phase.number))), None
        )

    def restore_metrics(self) -> None:
        """Restore metrics that were lost after the end of the run from its last checkpoint.

        Raises:
            RunFileError: The checkpoint does not have them.
        """
        if not self.folder.is_done(FINISHED) or not (lost := lost_steps(self.folder)):
            return
        held = self.folder.metrics_in_checkpoint(
            max(steps_in(self.folder.path / "checkpoints"), default=0)
        )
        if gone := [step for step in lost if step not in held]:
            raise RunFileError(
                f"{self.folder.path / METRICS} lacks the metrics of {len(gone)} steps of a finished "
                f"run, e.g. step {gone[0]}. Restore the file, or delete {self.folder.path} to train "
                "again."
            )
        self.folder.replace_metrics(held | self.folder.metrics())

    def continue_from(self, step: int) -> None:
        """Reset the records to those of the checkpoint from which training continues.

        Later steps were done before a kill and are repeated. Their metrics are dropped here. They
        are also dropped in MLflow if they were sent, which happens when the checkpoint that held
        them is damaged. Evaluations of their weights are repeated.
        """
        held = self.folder.metrics_in_checkpoint(step)
        self.folder.replace_metrics(
            held or {done: values for done, values in self.folder.metrics().items() if done <= step}
        )
        ended = sum(
            phase.end_step <= step for phase in phases(self.experiment, self.folder.metrics())
        )
        # Phases may have had other ends before the kill, so all later numbers are reset.
        for number in range(ended + 1, self.experiment.algorithm.steps + 1):
            self.folder.mark_undone(phase_name(number))
            evaluation = self.folder.evaluation(phase_name(number))
            evaluation.unlink(missing_ok=True)
            evaluation.with_suffix(".parquet").unlink(missing_ok=True)
        self.tracker.drop_steps_after(step)

    def _end_if_collapsed(self, step: int) -> None:
        """
        Raises:
            TrainingCollapsedError: Training collapsed, and the recipe's `on_collapse` ends the run.
        """
        if self.experiment.algorithm.on_collapse == "report":
            return
        history = {
            earlier: metrics
            for earlier, metrics in self.folder.metrics().items()
            if earlier <= step
        }
        if verdict_at(history, step).level == COLLAPSED:
            fall = TrainingCollapsedError(collapse_note(history), last_good_step(history))
            self.folder.note_collapse(fall)  # first, so that no kill can lose it
            raise fall


@contextmanager
def opened_run(
    folder: RunFolder, infrastructure: InfraSettings, clock: TimeBreakdown, name: str
) -> Iterator[Run]:
    """Claim the run's folder and open its records; the tracker ends a run that raises.

    Raises:
        RunFileError: `policy.model` no longer has the weights that the run began with.
    """
    experiment, runs, log = folder.experiment, infrastructure.runs.absolute(), flow_log()
    with (
        folder.claimed(),
        mirrored(folder, opened(infrastructure.shared_storage)) as mirror,
        open_tracker(infrastructure, experiment.name, folder.path) as tracker,
        PageProgress(experiment.algorithm.steps) as page,
        RunBar(experiment.algorithm.steps, log, page.show) as bar,
        SystemMetrics() as system,
    ):
        if not (folder.path / WORLD).is_file() and experiment.policy.model != "starter":
            record_weights(folder.path, experiment.policy.model)  # nothing was measured before
        check_start(folder)
        folder.begin(name)
        with clock.part("MLflow"):
            parent = tracker.start_run(
                name,
                experiment.model_dump(mode="json"),
                {
                    "environment": experiment.environment.name,
                    "algorithm": experiment.algorithm.name,
                    "folder": str(folder.path),
                }
                | description_tags(experiment, folder.path, runs)
                | (
                    {PARENT_RUN_TAG: infrastructure.mlflow_parent_run}
                    if infrastructure.mlflow_parent_run
                    else {}
                ),
            )
            link_to_mlflow(tracker, parent, runs, log)
            link_to_viewer(folder.path, runs, log)
        tag_flow_run(experiment.environment.name, experiment.algorithm.name)
        yield Run(infrastructure, folder, tracker, parent, clock, bar, mirror, system=system)
        tracker.end_run(parent)
        folder.mark_done(FINISHED)
        with clock.part("MLflow"):
            tracker.flush()


def retry_lost_trainer(run: Run, work: Callable[[], None]) -> None:
    """Do the work, and repeat it when a trainer node is lost or a rank hangs.

    The repetition continues from the last checkpoint, on other nodes if one was lost.
    """
    for left in reversed(range(RESTARTS + 1)):
        try:
            work()
            return
        except TrainerLostError as lost:
            if not left:
                raise
            run.bar.say(
                f"{lost}\nThe run continues from the last checkpoint. Restarts left: {left} of "
                f"{RESTARTS}."
            )


@contextmanager
def environment_servers(run: Run) -> Iterator[Replicas | None]:
    """Start the run's environment servers.

    Yields None if the settings name servers that run elsewhere.
    """
    infrastructure = run.infrastructure
    if urls_of(infrastructure, run.experiment.environment.name):
        run.bar.doing("Connecting to the servers of AGENTGYM_ENVIRONMENT_URLS")
        yield None
        return
    servers = environment_replicas(
        run.experiment.environment.name,
        infrastructure.environment_servers,
        rules=run.experiment.environment.rules,
        infrastructure=infrastructure,
    )
    with ExitStack() as started:
        with run.clock.part("environment servers"):
            started.enter_context(servers)
        yield servers


def task_lists(run: Run, servers: Replicas | None) -> TaskLists:
    """Read the run's tasks from the environment servers.

    Raises:
        EnvironmentCallError: A server does not answer.
        WrongWorldError: A server hosts another world than the recipe names or the run was started
            on.
    """
    experiment, urls = run.experiment, environment_urls(run, servers)

    async def ask() -> TaskLists:
        environment, evaluation = experiment.environment, experiment.evaluation
        world = await verify_servers(urls, environment)
        check_same(run.folder.path / WORLD, world.identity, "run")
        train = await task_indices(
            urls, environment, environment.train_tasks, "environment.train_tasks"
        )
        held_out = await task_indices(urls, environment, evaluation.tasks, "evaluation.tasks")
        if experiment.policy.model == "starter" and environment.dialect == "ours":
            lessons = experiment.policy.starter.tasks
            await task_indices(urls, environment, lessons, "policy.starter.tasks")
        tags = await task_tags(urls, evaluation.tasks)
        return TaskLists(
            world,
            train[: environment.n_train_tasks],
            held_out[: evaluation.n_tasks],
            tags,
        )

    return asyncio.run(ask())


def environment_urls(run: Run, servers: Replicas | None) -> tuple[str, ...]:
    """Return the addresses of the run's environment servers: its own, or those of the settings."""
    return servers.urls if servers else urls_of(run.infrastructure, run.experiment.environment.name)


@contextmanager
def engine_servers(run: Run, policy: str) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Start the vLLM servers that generate for the run.

    Yields their URLs and a function that raises when a server has failed for good. The list is
    empty if the trainer holds the engine.
    """
    infrastructure = run.infrastructure
    if infrastructure.engine_urls or not infrastructure.engine_servers:
        yield list(infrastructure.engine_urls), lambda: None
        return
    servers = engine_replicas(run.experiment, infrastructure, policy)
    with ExitStack() as started:
        with run.clock.part("vLLM servers"):
            started.enter_context(servers)
        yield list(servers.urls), servers.check


def policy_of(run: Run) -> tuple[str, Callable[[], object]]:
    """Return the policy that training starts from, and a function that builds it if it is missing.

    The policy is a Hugging Face name or a folder.
    """
    experiment = run.experiment
    if experiment.policy.model != "starter":
        return loadable("policy.model", experiment.policy.model), lambda: None
    policy, world, seed = experiment.policy, experiment.environment.name, experiment.seeds.starter
    folder, name = run.infrastructure.runs.absolute() / "starter", starter_name(policy, world, seed)
    storage = run.mirror.storage if run.mirror else None

    def build() -> None:
        run.bar.doing("Preparing the starter policy")
        with run.clock.part("starter policy"):
            shared_starter_policy(
                storage,
                folder,
                name,
                lambda: starter_policy(policy, world, seed, folder, run.bar.detail),
            )

    return str(folder / name), build


@contextmanager
def trainer_process(
    run: Run, tasks: TaskLists, servers: Replicas | None, from_step: int | None = None
) -> Iterator[TrainerProcess]:
    """Build the policy if it is missing, start the run's trainer and yield it when it is ready.

    It loads the newest complete checkpoint, or exactly the weights of `from_step`.
    """
    infrastructure, launch = run.infrastructure, trainer_launch(run.infrastructure)
    recorded = getattr(run.experiment.algorithm, "trajectories", None)
    policy, build = policy_of(run)
    imports_meanwhile = starts_forks(infrastructure) and not infrastructure.engine_servers
    with ExitStack() as parts:
        parts.enter_context(accelerators_held(infrastructure, run.folder.path.name, run.bar.doing))
        if not imports_meanwhile:
            build()
        engine_urls, check_engines = parts.enter_context(engine_servers(run, policy))
        job = TrainerJob(
            experiment=run.experiment,
            policy=policy,
            folder=run.folder.path,
            environment_urls=list(environment_urls(run, servers)),
            environment_identity=tasks.world.identity,
            success_score=tasks.world.success_score,
            instruction=tasks.world.instruction if run.experiment.policy.instruction else None,
            tool_lists=msgspec.to_builtins(tasks.world.tool_lists),
            train_tasks=tasks.train,
            recorded_files=recorded_files(recorded, run.folder.path) if recorded else [],
            from_step=from_step,
            sharding=launch.sharding,
            context_parallel=launch.context_parallel,
            engine_memory_fraction=infrastructure.engine_memory_fraction or SHARED_FRACTION,
            engine_sleep=infrastructure.engine_sleep,
            engine_cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
            engine_urls=engine_urls,
            engine_weights=infrastructure.engine_weights,
            engine_weights_folder=run.folder.path.absolute()
            if infrastructure.ray_address is not None
            else None,
            socket="",
        )

        def check() -> None:
            if servers:
                servers.check()
            check_engines()
            if run.mirror is not None:
                run.mirror.check()

        trainer = parts.enter_context(TrainerProcess(job, infrastructure, check))
        if imports_meanwhile:
            build()
        run.bar.doing("Starting the trainer")
        with run.clock.part("trainer start"):
            ready = trainer.ready()
        for note in ready.notes:
            run.bar.say(f"Skipped a checkpoint: {note}")
        if ready.step and from_step is None:
            run.bar.say(f"Continuing after step {ready.step} from its checkpoint.")
            run.bar.done_before(ready.step)
        yield trainer
        with run.clock.part("trainer end"):
            trainer.close()
