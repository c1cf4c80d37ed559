"""The trainer's hooks: when to checkpoint, what to report, when to wait for the flow's next command."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.curriculum.horizon import horizon_at
from tasks.training import checkpoint
from tasks.training.collapse import checkpoints_kept
from tasks.training.job import Saved, StepDone, Trained
from tasks.training.step_metrics import rollout_metrics

if TYPE_CHECKING:
    from tasks.training.worker import Worker

# TRL's names of what is reported, and ours.
_LOGGED = {
    "loss": "update/loss",
    "grad_norm": "update/gradient_norm",
    "learning_rate": "update/learning_rate",
    "kl": "update/kl",
    "clip_ratio/region_mean": "update/clipped_share",
    "value_loss": "critic/loss",
    "rewards/accuracies": "update/preferred_share",
}


class FlowCallback(TrainerCallback):
    """Ties the loop of the trainer to the flow. A step here is a training step: one batch of trajectories."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.until = 0
        self.logged: dict[str, list[float]] = defaultdict(list)
        self.checkpoint_seconds = 0.0
        self.saving_since = 0.0

    def _step(self, state: TrainerState) -> int | None:
        """Training steps done, or None in the midst of one."""
        step, rest = divmod(state.global_step, self.worker.trainer.updates_per_step)
        return None if rest else step

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.until = self.worker.obey(self._step(state) or 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = self._step(state)
        if step is not None and (step >= self.until or step % self.worker.experiment.checkpoint_every == 0):
            control.should_save = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        for name, value in (logs or {}).items():
            if name in _LOGGED and value is not None:
                self.logged[_LOGGED[name]].append(float(value))
        step = self._step(state)
        if step is not None:
            if self.worker.line is not None:
                self.worker.trainer.step_metrics[step] = self._metrics(step)
                self.worker.tell(StepDone(step, self.worker.trainer.step_metrics[step]))
            self.logged.clear()
            self.saving_since = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = self._step(state)
        assert step is not None
        self.checkpoint_seconds = time.perf_counter() - self.saving_since
        published = self.worker.trainer.published
        if published is not None:
            self.worker.tell(Saved(published.step, str(published.folder), published.digest, self.checkpoint_seconds))
            checkpoint.prune(published.folder.parent, checkpoints_kept(self.worker.experiment), self.worker.job.phase_ends)
        if step >= self.until:
            self.worker.tell(Trained(step))
            self.until = self.worker.obey(step)

    def _metrics(self, step: int) -> dict[str, float]:
        worker, trainer = self.worker, self.worker.trainer
        metrics = {name: sum(values) / len(values) for name, values in self.logged.items()}
        horizon = horizon_at(worker.experiment.curriculum, step - 1)
        whole_groups = worker.experiment.algorithm.compares_groups
        metrics |= rollout_metrics(worker.collected, horizon, trainer.rollout_seconds - worker.sync_seconds, step - 1, whole_groups)
        update_seconds = time.perf_counter() - trainer.collected_at
        tokens = sum(len(t.prompt) + len(t.completion) for t in worker.learnt)
        metrics |= (
            trainer.batch_metrics
            | worker.refill_cost
            | {
                "rollout/prefix_cache_share": worker.cached_share(),
                "rollout/concurrency_limit": float(worker.collector.concurrency.limit),
                "update/seconds": update_seconds,
                "update/tokens_per_second": tokens / update_seconds,
                "sync/seconds": worker.sync_seconds,
                "checkpoint/seconds": self.checkpoint_seconds,
            }
        )
        if worker.gap is not None:
            metrics |= {"sync/probe_gap_mean": worker.gap.mean, "sync/probe_gap_largest": worker.gap.largest}
        if torch.cuda.is_available():
            metrics["update/peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self.checkpoint_seconds = 0.0
        return metrics
