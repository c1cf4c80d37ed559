"""The trainer process: policy, optimiser and engine, controlled by the flow.

There is one process per GPU, started by torchrun, accelerate or a fork:

torchrun --nproc_per_node 1 -m tasks.training.trainer_main JOB.json
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from pathlib import Path

from tasks.provision.ipc import FlowConnection, die_with_parent
from tasks.training.messages import (
    Close,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Progress,
    Ready,
    Saved,
    StepDone,
    Train,
    Trained,
    TrainerJob,
)
from tasks.training.rank_errors import note_error
from tasks.training.rank_watch import PART_S, WEIGHTS_S, Heartbeats

OUT_OF_MEMORY = """
Set algorithm.micro_batch_tokens, or a smaller value of it, or policy.gradient_checkpointing: true."""


class TrainerMain:
    """One rank of the trainer: builds the components, then executes the flow's commands."""

    def __init__(self, job: TrainerJob, flow: FlowConnection | None) -> None:
        """Start the engine and load the policy.

        `flow` is the connection to the flow, on rank 0 only.
        """
        import torch
        from transformers import AutoTokenizer

        from tasks.tracking.step_metrics_file import METRICS, read_steps
        from tasks.training import checkpoint
        from tasks.training.context_parallel import context_parallel
        from tasks.training.implementations import batches_class, trainer_class
        from tasks.training.process_group import join
        from tasks.training.rollout_worker import RolloutWorker
        from tasks.training.train_loop import TrainLoop

        self.job, self.flow, self.experiment = job, flow, job.experiment
        processes = join(self.experiment, job.folder)
        if not torch.cuda.is_available():
            # The update multiplies larger matrices than the engine, so it uses all cores, split
            # across the ranks.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes.num_processes))
        tokenizer = AutoTokenizer.from_pretrained(job.policy)
        self.heartbeats = Heartbeats(PART_S["gpu" if torch.cuda.is_available() else "cpu"])
        self.worker = RolloutWorker(
            job,
            tokenizer,
            lambda finished, total: self.send_event(Progress(finished, total)),
            self.heartbeats,
        )
        algorithm = self.experiment.algorithm
        self.trainer = trainer_class(algorithm)(
            self.experiment, job.policy, tokenizer, job.folder, job.sharding
        )
        self.trainer.context_parallel = context_parallel(
            job.context_parallel, self.trainer.model, getattr(self.trainer, "ref_model", None)
        )
        checkpoints, fingerprint = job.folder / "checkpoints", self.experiment.fingerprint()
        found: tuple[checkpoint.Checkpoint | None, list[str]] = (None, [])
        if processes.is_main_process:  # on shared storage other nodes see a new folder later
            if job.from_step is None:
                found = checkpoint.latest(checkpoints, fingerprint)
            else:
                found = checkpoint.of_step(checkpoints, job.from_step, fingerprint), []
        self.resume, self.notes = self.worker.broadcast(found)
        self.steps = read_steps(self.resume.folder / METRICS) if self.resume else {}
        self.trainer.prepare(self.resume.folder if self.resume else None)
        self.step = self.resume.step if self.resume else 0
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        per_parameter = 6 if self.experiment.policy.lora is None else 4
        self.loop = TrainLoop(
            self.experiment,
            self.trainer,
            batches_class(algorithm)(job, self.worker, self.trainer),
            self.heartbeats,
            per_parameter * parameters / processes.num_processes,
        )
        self.checkpoint_seconds = 0.0

    def run(self) -> None:
        """Report readiness, then execute the flow's commands until `Close`."""
        self.send_event(Ready(self.step, self.notes))
        with self.worker:
            while True:
                match self.worker.broadcast(self.flow.receive() if self.flow else None):
                    case Train(until):
                        self.train(until)
                    case Evaluate() as command:
                        self.evaluate(command)
                    case Close() | None:
                        return

    def train(self, until: int) -> None:
        """Train until `until` steps are done or the phase ends.

        Some of the steps may already be done in the checkpoint that was resumed.
        """
        from tasks.curriculum.horizon import starts_phase

        ended = False
        while self.step < until and not ended:
            metrics = self.loop.train_step(self.step, self.steps)
            self.step += 1
            self.steps[self.step] = {**metrics, "checkpoint/seconds": self.checkpoint_seconds}
            self.send_event(StepDone(self.step, self.steps[self.step]))
            self.checkpoint_seconds = 0.0
            ended = self.step == until or starts_phase(self.experiment, self.step, self.steps)
            if ended or self.step % self.experiment.checkpoint_every == 0:
                self.save()
        self.send_event(Trained(self.step))

    def save(self) -> None:
        """Write a checkpoint and delete obsolete ones."""
        from tasks.curriculum.horizon import phases
        from tasks.training import checkpoint
        from tasks.training.collapse import checkpoints_kept, rollback_step

        started, began = time.time(), time.perf_counter()
        with self.heartbeats.part(WEIGHTS_S):
            published = self.trainer.save(self.step, self.steps)
        self.checkpoint_seconds = time.perf_counter() - began
        self.trainer.record_spans(self.step, {"checkpoint": (started, time.time())})
        if published is not None:
            self.send_event(Saved(published.step, self.checkpoint_seconds))
            folder = published.folder.parent
            spare = rollback_step(self.experiment, self.steps, checkpoint.steps_in(folder))
            spare |= {phase.end_step for phase in phases(self.experiment, self.steps)}
            checkpoint.prune(folder, checkpoints_kept(self.experiment), spare)

    def evaluate(self, command: Evaluate) -> None:
        """Run the evaluation's episodes, split across ranks, and write their trajectories.

        Episodes in the file from an earlier attempt with the same weights are reused, unless they
        failed.
        """
        from tasks.evaluation.benchmark import kept_episodes
        from tasks.rollout.episode import RolloutSettings
        from tasks.rollout.trajectory_parquet import write_trajectories
        from tasks.training.task_order import evaluation_plans

        started, began = time.time(), time.perf_counter()
        self.worker.load_weights(self.step, self.trainer)
        kept = self.worker.broadcast(kept_episodes(Path(command.path), self.step))
        done = {(each.group, each.member) for each in kept}
        plans = [
            plan
            for plan in evaluation_plans(command.tasks, command.samples, command.seed)
            if (plan.group, plan.member) not in done
        ]
        trajectories = self.worker.collect_shared(
            "evaluation", plans, RolloutSettings(command.horizon, command.temperature)
        )
        self.trainer.record_spans(self.step, {"evaluation": (started, time.time())})
        if self.flow is not None:
            write_trajectories(
                Path(command.path),
                sorted([*kept, *trajectories], key=lambda each: (each.group, each.member)),
            )
            self.send_event(Evaluated(time.perf_counter() - began))

    def send_event(self, event: Event) -> None:
        """Send an event to the flow, on rank 0."""
        if self.flow is not None:
            self.flow.send(event)


def main() -> None:
    """Run one trainer process from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.training.trainer_main",
        description="Run one process of the trainer. Flows start it.",
    )
    parser.add_argument(
        "job", type=Path, help="JSON file of a TrainerJob, e.g. runs/quickstart-1a2b3c/trainer.json"
    )
    run(read_job(parser.parse_args().job))


def read_job(file: Path) -> TrainerJob:
    """Read the trainer's job."""
    return TrainerJob.model_validate_json(file.read_text(encoding="utf-8"))


def import_all(job: TrainerJob) -> None:
    """Import the modules that `run` needs, so that processes forked afterwards share them."""
    from tasks.inference.vllm_engine import import_vllm
    from tasks.training import checkpoint, rollout_worker, train_loop  # noqa: F401
    from tasks.training.implementations import batches_class, trainer_class

    if job.experiment.rollout.engine == "vllm" and not job.engine_urls:
        import_vllm()
    trainer_class(job.experiment.algorithm)
    batches_class(job.experiment.algorithm)


def run(job: TrainerJob) -> None:
    """Run one trainer process until it exits.

    Raises:
        SystemExit: The process failed and reported the error to the flow.
    """
    die_with_parent()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    flow = FlowConnection(job.socket) if os.environ.get("RANK", "0") == "0" else None
    trainer = None
    try:
        trainer = TrainerMain(job, flow)
        trainer.run()
    except Exception as problem:  # noqa: BLE001 - every error must reach the flow
        traceback.print_exc()
        name = type(problem).__name__
        text = f"{problem}{OUT_OF_MEMORY if name == 'OutOfMemoryError' else ''}"
        if flow is not None:
            flow.send(Failed(name, text))
        else:
            note_error(job.folder, int(os.environ["RANK"]), name, text)
        raise SystemExit(1) from None
    finally:
        # vLLM in this process would take seconds to free what the exit frees
        if trainer is not None and trainer.worker.engine.out_of_process:
            trainer.worker.engine.close()


def exit_at_once() -> None:
    """Exit the process at once.

    Python needs seconds to unload torch and vLLM, and frees nothing that the operating system does
    not free anyway.
    """
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    exit_at_once()
