"""The trainer process: policy, optimiser and engine. One per GPU, started through torchrun or accelerate; it obeys the flow.

torchrun --nproc_per_node 1 -m tasks.training.worker JOB.json
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.provision.ipc import FlowConnection, die_with_parent
from tasks.training.job import Close, Evaluate, Evaluated, Event, Failed, Progress, Ready, Train, Trained, TrainerJob

if TYPE_CHECKING:
    import torch

    from configs.experiment import Algorithm
    from tasks.inference.weight_sync_check import Gap
    from tasks.rollout.collector import Batch
    from tasks.rollout.episode import RolloutRequest, RolloutSettings
    from tasks.rollout.trajectory import Trajectory
    from tasks.training.imitation import CloningTrainer, PreferenceTrainer
    from tasks.training.trainer import AgentTrainer

T = TypeVar("T")

PROGRESS_SECONDS = 0.5
PROBE_TOKENS = 16


class Closed(Exception):
    """The flow said that it is over."""


class Worker:
    """One process of the trainer. It is the source of the trainer's trajectories and the servant of the flow's commands."""

    def __init__(self, job: TrainerJob, line: FlowConnection | None) -> None:
        """Loads the policy and starts the engine. `line` leads to the flow; only the main process has one."""
        began = time.perf_counter()
        import torch
        from accelerate import PartialState
        from transformers import AutoTokenizer

        from tasks.agents.chat_format import ChatFormat
        from tasks.agents.token_agent import TokenAgent
        from tasks.inference.engine_factory import start_engine
        from tasks.rollout.collector import Collector
        from tasks.tracking.step_metrics_file import METRICS, read_steps
        from tasks.training import checkpoint
        from tasks.training.batches import ImitationBatches
        from tasks.training.flow_callback import FlowCallback

        imported = time.perf_counter()
        self.job, self.line, self.experiment = job, line, job.experiment
        self.processes = PartialState(cpu=not torch.cuda.is_available())
        if not torch.cuda.is_available():
            # The update multiplies larger matrices than the engine: all cores, shared out among the processes.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.processes.num_processes))
        policy = self.experiment.policy
        self.engine = start_engine(
            self.experiment,
            job.policy,
            distributed=self.processes.num_processes > 1,
            gpu_memory_fraction=job.engine_memory_fraction,
            cpu_cache_gb=job.engine_cpu_cache_gb,
            urls=job.engine_urls,
            weights=job.engine_weights if self.processes.is_main_process else "folder",  # only it loads servers
        )
        engine_started = time.perf_counter()
        tokenizer = AutoTokenizer.from_pretrained(job.policy)
        self.dialogue = ChatFormat(
            tokenizer,
            policy.action_format,
            job.instruction if policy.instruction else None,
            conversation_start=policy.conversation_start,
        )
        self.collector = Collector(
            self.experiment.environment.name,
            job.environment_urls,
            TokenAgent(self.engine, self.dialogue),
            self.experiment.rollout,
            dialect=self.experiment.environment.dialect,
            identity=job.environment_identity,
            success_score=job.success_score,
        )
        imitates = self.experiment.algorithm.imitates
        self.imitation = ImitationBatches(self.experiment, job.train_tasks, job.folder, self._explore) if imitates else None
        collect = self.collect_imitation_batch if imitates else self.collect_training_batch
        self.trainer = trainer_class(self.experiment.algorithm)(
            self.experiment, job.policy, tokenizer, collect, job.folder, job.fingerprint
        )
        self.trainer.add_callback(FlowCallback(self))
        self.loaded_step: int | None = None
        self.gap: Gap | None = None
        self.sync_seconds = 0.0
        self.collected: list[Trajectory] = []
        self.learnt: list[Trajectory] = []
        self.refill_cost: dict[str, float] = {}
        self._cache_counts = (0, 0)
        checkpoints = job.folder / "checkpoints"
        self.resume, self.notes = (
            checkpoint.latest(checkpoints, job.fingerprint)
            if job.from_step is None
            else (checkpoint.of_step(checkpoints, job.from_step, job.fingerprint), [])
        )
        if self.resume is not None:
            self.trainer.step_metrics = read_steps(self.resume.folder / METRICS)
        self.seconds = {
            "imports": imported - began,
            "engine": engine_started - imported,
            "policy": time.perf_counter() - engine_started,
        }

    def run(self) -> None:
        """Announces readiness, then trains and evaluates as told, until told to close."""
        self.tell(
            Ready(
                step=self.resume.step if self.resume else 0,
                batch_invariant=self.engine.batch_invariant,
                parameters=sum(p.numel() for p in self.trainer.model.parameters()),
                seconds=self.seconds,
                notes=self.notes,
            )
        )
        try:
            with self.collector:
                self.trainer.train(resume_from_checkpoint=str(self.resume.folder) if self.resume else None)
        except Closed:
            return
        raise RuntimeError("training ended without the flow's word")  # FlowCallback closes it

    def obey(self, step: int) -> int:
        """Carries out commands until one says to train on; returns until which step.

        Raises:
            Closed: The flow said that it is over.
        """
        while True:
            command = self._shared(self.line.receive() if self.line else None)
            match command:
                case Train() if command.until > step:
                    return command.until
                case Train():  # a former life of this process got there; what came after was not finished
                    self.tell(Trained(step))
                case Evaluate():
                    self.evaluate(command, step)
                case Close() | None:
                    raise Closed

    def evaluate(self, command: Evaluate, step: int) -> None:
        """Plays the evaluation's episodes, shared out over the processes, and writes their trajectories."""
        from tasks.rollout.episode import RolloutSettings
        from tasks.rollout.trajectory_parquet import write_trajectories
        from tasks.training.task_order import evaluation_plans

        began = time.perf_counter()
        self.load_engine(step)
        plans = evaluation_plans(command.tasks, command.samples, command.seed)
        conditions = RolloutSettings(command.horizon, command.temperature)
        trajectories = self._gathered(self._play(plans[self.processes.process_index :: self.processes.num_processes], conditions))
        if self.line is not None:
            trajectories.sort(key=lambda t: (t.group, t.member))
            write_trajectories(Path(command.path), trajectories)
            self.line.send(Evaluated(command.path, time.perf_counter() - began))

    def collect_training_batch(self, step: int) -> list[Trajectory]:
        """This process's whole groups of a training step (from 0); the main process also stores everybody's."""
        from tasks.rollout.trajectory_parquet import write_trajectories
        from tasks.training.batches import refill_cost, refilled

        self.load_engine(step)
        last = min(step + self.experiment.rollout.max_off_policy_steps, self.experiment.algorithm.steps - 1)
        batches = [self.batch_of(each) for each in range(step, last + 1)]
        played = self.collector.collect(batches, self._progress())
        trajectories, discarded = refilled(played, self.experiment, self.job.train_tasks, step, batches[0].settings, self._play)
        everybodys, thrown_away = self._gathered(trajectories), self._gathered(discarded)
        if self.line is not None:
            everybodys = sorted([*everybodys, *thrown_away], key=lambda t: (t.group, t.member))
            write_trajectories(self.job.folder / "rollouts" / f"step-{step + 1:06d}.parquet", everybodys)
            self.collected = self.learnt = everybodys
            self.refill_cost = refill_cost(thrown_away) if self.experiment.algorithm.refills else {}
        return trajectories

    def collect_imitation_batch(self, step: int) -> list[Trajectory]:
        """This process's share of what is imitated in a training step (from 0)."""
        assert self.imitation is not None
        self.sync_seconds = 0.0
        self.learnt = self.imitation.batch(step)
        self.collected = self.imitation.explored
        return self.imitation.share(self.learnt, self.processes.process_index, self.processes.num_processes)

    def _explore(self, step: int, plans: Sequence[RolloutRequest], conditions: RolloutSettings, path: Path) -> list[Trajectory]:
        """Plays episodes with the weights of a step, shared out over the processes; the main process stores them."""
        from tasks.rollout.trajectory_parquet import write_trajectories

        self.load_engine(step)
        mine = self._play(plans[self.processes.process_index :: self.processes.num_processes], conditions)
        everybodys = sorted(self._gathered(mine), key=lambda t: (t.group, t.member))
        if self.line is not None:
            write_trajectories(path, everybodys)
        return everybodys

    def batch_of(self, step: int) -> Batch:
        """The episodes of a training step that are this process's."""
        from tasks.curriculum.horizon import horizon_at
        from tasks.rollout.collector import Batch
        from tasks.rollout.episode import RolloutSettings
        from tasks.training.task_order import plans_of_step

        rollout = self.experiment.rollout
        plans = plans_of_step(self.job.train_tasks, step, rollout.tasks_per_step, rollout.group_size, self.experiment.seeds.training)
        mine = [plan for plan in plans if plan.group % self.processes.num_processes == self.processes.process_index]
        return Batch(f"step {step}", mine, RolloutSettings(horizon_at(self.experiment.curriculum, step), rollout.temperature))

    def load_engine(self, step: int) -> None:
        """Gives the engine the trainer's weights of `step`, if it has others, and proves that they arrived."""
        from tasks.inference.engine import Sampling
        from tasks.inference.weight_sync_check import check_weight_sync
        from tasks.training.weights import full_weights

        self.sync_seconds = 0.0
        if self.loaded_step == step:
            return
        began = time.perf_counter()
        prompts = [self.dialogue.prompt(text) for text in ("probe", f"probe {step}", "a b c d e f g", "1 2 3 4 5")]
        sampling = Sampling(self.experiment.rollout.temperature, PROBE_TOKENS, self.dialogue.stop_tokens, seed=step)
        with self.collector.paused():
            self._load(full_weights(self.trainer.accelerator.unwrap_model(self.trainer.model)))
            self.gap = check_weight_sync(self.engine, prompts, self.trainer.score_continuations, sampling, self.experiment.policy.dtype)
            self.loaded_step = self.engine.policy_version = step
        self.sync_seconds = time.perf_counter() - began

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads the engine; into servers that all processes share the main process alone does, while nobody has episodes there."""
        from tasks.inference.pool_engine import VllmPoolEngine

        if self.processes.num_processes == 1 or not isinstance(self.engine, VllmPoolEngine):
            self.engine.load(weights)
            return
        self.processes.wait_for_everyone()
        if self.processes.is_main_process:
            self.engine.load(weights)
        else:
            for _ in weights:
                pass  # where they are spread over the processes, gathering them takes all
        loaded = self._shared(self.engine.pool.loaded)
        if not self.processes.is_main_process:
            assert loaded is not None
            self.engine.follow(loaded)

    def cached_share(self) -> float:
        """Share of the prompt tokens since the last call that the engine's prefix cache held."""
        cached, prompts = self.engine.cached_tokens, self.engine.prompt_tokens
        before_cached, before_prompts = self._cache_counts
        self._cache_counts = (cached, prompts)
        return (cached - before_cached) / max(1, prompts - before_prompts)

    def tell(self, event: Event) -> None:
        """Sends an event to the flow, from the main process."""
        if self.line is not None:
            self.line.send(event)

    def _play(self, plans: Sequence[RolloutRequest], conditions: RolloutSettings) -> list[Trajectory]:
        """Plays episodes on this process with the weights that the engine has."""
        from tasks.rollout.collector import Batch

        return self.collector.collect([Batch("extra", plans, conditions)], self._progress())

    def _progress(self) -> Callable[[int, int], None]:
        """Tells the flow how far a batch is, now and then."""
        told = 0.0

        def progress(finished: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told > PROGRESS_SECONDS or finished == total:
                told = time.monotonic()
                self.tell(Progress(finished, total))

        return progress

    def _shared(self, mine: T) -> T:
        """What the main process has, in every process."""
        from accelerate.utils import broadcast_object_list

        box = [mine]
        broadcast_object_list(box)
        return box[0]

    def _gathered(self, mine: list[T]) -> list[T]:
        """Everybody's items, in every process."""
        from accelerate.utils import gather_object

        return list(gather_object(mine))


def trainer_class(algorithm: Algorithm) -> type[AgentTrainer | CloningTrainer | PreferenceTrainer]:
    """The trainer of a method."""
    from tasks.training.imitation import CloningTrainer, PreferenceTrainer
    from tasks.training.trainer import AgentTrainer

    if algorithm.name == "dpo":
        return PreferenceTrainer
    return CloningTrainer if algorithm.imitates else AgentTrainer


def main() -> None:
    """Runs one process of the trainer."""
    parser = argparse.ArgumentParser(prog="python -m tasks.training.worker", description="One process of the trainer; started by a flow.")
    parser.add_argument("job", type=Path, help="JSON file of a TrainerJob, e.g. runs/quickstart-1a2b3c/trainer.json")
    job = TrainerJob.model_validate_json(parser.parse_args().job.read_text(encoding="utf-8"))
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    line = FlowConnection(job.socket) if os.environ.get("RANK", "0") == "0" else None
    worker = None
    try:
        worker = Worker(job, line)
        worker.run()
    except Exception as problem:  # noqa: BLE001 - the flow must hear of it, whatever it is
        traceback.print_exc()
        if line is not None:
            line.send(Failed(type(problem).__name__, str(problem), traceback.format_exc()))
        raise SystemExit(1) from None
    finally:
        if worker is not None:
            worker.engine.close()


if __name__ == "__main__":
    main()
