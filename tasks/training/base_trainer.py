"""The base of all trainers: a trainer of transformers whose state is used, but not its loop.

The loop is in `train_loop`. TRL computes the losses of cloning and preferences, `policy_loss` that of
RL. transformers and accelerate supply the optimiser, mixed precision, DDP and the contents of a
checkpoint. FSDP2 is in `sharding`.

The module calls some private methods of the versions pinned in `locks/`. The tests of gradients, of
two processes and of resuming detect an incompatible version.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME

from configs.experiment import Experiment
from configs.launch import Sharding
from configs.model_folder import write_recipe
from tasks.inference.adapter import Adapter, save_adapter
from tasks.rollout.train_sample_parquet import FOLDER as TRAIN_SAMPLES
from tasks.rollout.trajectory import Trajectory, Turn
from tasks.tracking.step_metrics_file import METRICS, Steps, write_steps
from tasks.tracking.timeline import TIMELINE, append_spans
from tasks.training import checkpoint
from tasks.training.compute_dtype import compute_dtype
from tasks.training.context_parallel import ContextParallel
from tasks.training.lora import ADAPTER, adapters, load_adapter, set_adapters
from tasks.training.loss_record import LossRecord
from tasks.training.micro_batches import (
    PackedRows,
    PaddedRows,
    deal,
    length_of,
    token_ids,
)
from tasks.training.model_loading import (
    check_weights,
    load_model,
    load_policy,
    load_reference,
    whole_policy,
)
from tasks.training.optimiser_state import load_optimiser, save_optimiser
from tasks.training.packing import pack, packs, shares_prefixes
from tasks.training.random_states import load_random_states, save_random_states
from tasks.training.recomputation import recompute_activations
from tasks.training.row_tensors import Tensors, pad_trajectories
from tasks.training.sharding import gather_tensor, scatter_weights
from tasks.training.streaming import WAITING_GROUPS, read_waiting, write_waiting
from tasks.training.task_results import (
    TASK_RESULTS,
    TaskResults,
    read_results,
    write_results,
)

OPTIMISER, SCHEDULE = "optimiser", "scheduler.json"


class BaseTrainer(Trainer):
    """The base of the RL trainer, and a mixin before the TRL trainer of an imitation method.

    A *training step* is one batch of trajectories. It makes `epochs` x `mini_batches` optimiser
    updates (transformers' global steps), each of `micro_batches` forward-backward passes.

    Attributes:
        experiment: The recipe.
        policy: Hugging Face name or folder of the policy that training starts from.
        batch_metrics: Metrics of the last batch.
        waiting_groups: Numbers of the groups in flight after the last step, of all ranks (see
            `streaming`). Empty unless rollout.stream is set.
        task_results: Results of the tasks in earlier steps, on every rank. Empty unless
            algorithm.task_order is by_success.
        out_of_sync: Group and member of the episodes, of all ranks, that the last batch left out
            because they were sampled with other weights.
        policy_learns: Whether updates change the policy. False while a critic is pretrained.
        loss_record: Inputs and outputs of the loss for each token of the batch. Empty for imitation
            methods, which have no advantages.
        context_parallel: The ranks that compute packed rows with this one. They have the same
            micro-batches, and sums over all ranks count them once. None: there are none.
        beat: Called before a micro-batch is scored. It shows that the rank does not hang.
    """

    context_parallel: ContextParallel | None = None

    def begin(self, experiment: Experiment, policy: str, folder: Path, sharding: Sharding) -> None:
        """Set the attributes that the constructor needs.

        Args:
            experiment: The recipe.
            policy: Hugging Face name or folder of the policy that training starts from.
            folder: The run's folder, which will contain the checkpoints.
            sharding: How to shard weights, gradients and optimiser state across ranks.

        Raises:
            ValueError: The dtype is float16, whose gradients would need a loss scale.
        """
        if experiment.policy.dtype == "float16":
            raise ValueError("policy.dtype: float16 cannot be trained; set it to bfloat16")
        self.experiment, self.policy, self.sharding = experiment, policy, sharding
        self.batch_metrics: dict[str, float] = {}
        self.policy_learns = True
        self.beat: Callable[[], None] = lambda: None
        self.loss_record = LossRecord()
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._loss = torch.zeros(())
        self._measured: dict[str, list[float]] = defaultdict(list)
        self.task_results: TaskResults = {}
        self.waiting_groups: list[int] = []
        self.out_of_sync: frozenset[tuple[int, int]] = frozenset()

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a share of the weights, instead of all."""
        return self.sharding != "none"

    @property
    def compute_dtype(self) -> torch.dtype:
        """The compute dtype of the models. The policy's weights are float32 regardless."""
        return compute_dtype(self.experiment.policy.dtype)

    @property
    def engine_dtype(self) -> torch.dtype:
        """The dtype of the engine's weights, also used for sending them."""
        dtype: torch.dtype = getattr(torch, self.experiment.policy.dtype)
        return dtype

    def load_policy(self) -> Any:
        """Load the policy that training starts from. Its trained parameters are float32."""
        model = load_policy(
            self.experiment.policy,
            self.policy,
            self.sharding,
            self.compute_dtype,
            self.experiment.seeds.training,
        )
        self.first_adapters = adapters(model)
        return model

    def load_reference(self, model: str | None = None) -> Any:
        """Load a frozen model, by default the policy that training starts from, in compute dtype."""
        return load_reference(
            self.experiment.policy, model or self.policy, self.sharding, self.compute_dtype
        )

    def prepare(self, resume: Path | None = None) -> None:
        """Create optimiser and schedule, and restore a checkpoint if one is given.

        Raises:
            CheckpointError: A file of the checkpoint cannot be read.
        """
        if resume is not None:
            checkpoint.check_safetensors(resume)
        recompute_activations(self.model, self.experiment.policy.gradient_checkpointing)
        algorithm = self.experiment.algorithm
        updates = algorithm.steps * algorithm.updates_per_step
        # A checkpoint of LoRA holds merged weights, which cannot be split again.
        weights = resume if self.experiment.policy.lora is None else None
        if resume is not None and weights is None:
            set_adapters(self.model, load_adapter(resume / ADAPTER))
        if not self.sharded:
            if weights is not None:
                self._load_from_checkpoint(str(weights))
            self.wrapped_model, _ = self._prepare_for_training(updates, None, None)
        else:
            if weights is not None:
                scatter_weights(
                    self.model,
                    load_model(str(weights), sharded=True, dtype=torch.float32).state_dict(),
                )
            self.optimizer = self.accelerator.prepare_optimizer(self.create_optimizer())
            self.create_scheduler(updates)
            self.wrapped_model = self.model_wrapped = self.model
        check_weights(self.accelerator.unwrap_model(self.model), str(weights or self.policy))
        if resume is not None:
            self.load_training_state(resume)
            states = resume / self._random_states_name()
            if states.exists():  # absent if the number of ranks changed
                load_random_states(states)
        self.wrapped_model.zero_grad()

    def mini_batches_of(self, trajectories: list[Trajectory], step: int) -> list[list[Tensors]]:
        """Compute advantages or labels and split the batch into mini-batches of micro-batches.

        The result is one pass over the batch.

        Args:
            trajectories: This rank's trajectories.
            step: The training step (from 0) that uses them.
        """
        raise NotImplementedError

    def outside_seconds(self, trajectories: Sequence[Trajectory]) -> float:
        """Return the most seconds that `mini_batches_of` waits for servers with a batch."""
        return 0.0

    def micro_batch_rows(
        self, rows: Sequence[Trajectory], most: Sequence[int] | None = None
    ) -> PaddedRows | PackedRows:
        """Return what micro-batches of some rows cost: padded ones, or packed ones.

        Packed rows share prefixes if the model's attention allows it, of at most `most` tokens.
        """
        if not packs(self.model):
            return PaddedRows([length_of(row) for row in rows])
        return PackedRows(
            [token_ids(row) for row in rows], share=shares_prefixes(self.model), most=most
        )

    def parts(self, rows: PaddedRows | PackedRows, mini_batches: int = 1) -> list[list[int]]:
        """Split this rank's share of `mini_batches` mini-batches into micro-batches.

        Every rank gets the same number of micro-batches. The last ones may be empty.

        Args:
            rows: The rows of the share.
            mini_batches: Number of mini-batches that the share belongs to.

        Returns:
            Lists of indices into `rows`.
        """
        algorithm = self.experiment.algorithm
        if algorithm.micro_batch_tokens is None:
            return deal(rows, algorithm.passes * mini_batches)
        budget = algorithm.micro_batch_tokens
        needed = torch.tensor([max(1, len(rows.within(budget)))])
        return deal(rows, int(self.all_reduce_max(needed).item()), budget)

    def add_gradient(self, micro_batch: Tensors, number: int, of: int) -> None:
        """Run a forward and backward pass of the loss.

        Gradients accumulate until `optimiser_step`.

        Args:
            micro_batch: A micro-batch of `mini_batches_of`.
            number: Its number in the mini-batch, from 1. Ranks reduce their gradients with the last
                one.
            of: Number of micro-batches in the mini-batch.
        """
        last, self.current_gradient_accumulation_steps = number == of, of
        self.accelerator.gradient_state._set_sync_gradients(last)
        inputs = {name: tensor.to(self.accelerator.device) for name, tensor in micro_batch.items()}
        # Sharded gradients are reduced after each micro-batch. Unreduced gradients would be
        # full-size on every rank.
        with (
            nullcontext() if last or self.sharded else self.accelerator.no_sync(self.wrapped_model)
        ):
            tokens = (
                inputs["tokens"] if "tokens" in inputs and self.model_accepts_loss_kwargs else None
            )
            loss = self.training_step(self.wrapped_model, inputs, tokens)
        self._loss = self._loss.to(loss.device) + loss

    def optimiser_step(self) -> None:
        """Update the policy with the accumulated gradients.

        The gradients are dropped while `policy_learns` is False, or if they are not finite. Their
        norm then shows the collapse, and the weights stay as they are.
        """
        norm = gather_tensor(self._clip_grad_norm(self.wrapped_model))
        rate = 0.0
        if self.policy_learns and bool(norm.isfinite()):
            self.optimizer.step()
            rate = self._get_learning_rate()
            if not self.accelerator.optimizer_step_was_skipped:
                self.lr_scheduler.step()
        self.wrapped_model.zero_grad()
        self.state.global_step += 1
        loss = self.all_reduce_sum(self._loss) / self.accelerator.num_processes
        self._loss = torch.zeros_like(self._loss)
        self.measure(
            {
                "update/loss": float(loss),
                "update/gradient_norm": float(norm),
                "update/learning_rate": float(rate),
            }
        )

    def record(self, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
        """Write the train samples and the timeline of a training step (counted from 1).

        `spans` has the format of `append_spans`.
        """
        self.loss_record.write(self._folder / TRAIN_SAMPLES / f"step-{step:06d}.parquet")
        self.record_spans(step, spans)

    def record_spans(self, step: int, spans: Mapping[str, tuple[float, float]]) -> None:
        """Write the timeline of a training step, on rank 0."""
        if self.accelerator.is_main_process:
            append_spans(self._folder / TIMELINE, step, spans)

    def measure(self, values: dict[str, float]) -> None:
        """Record metrics of an update. The step reports their mean."""
        for name, value in values.items():
            self._measured[name].append(value)

    def update_metrics(self) -> dict[str, float]:
        """Return the metrics of the step: means over its updates, and the metrics of its batch."""
        measured = {name: fmean(values) for name, values in self._measured.items()}
        self._measured.clear()
        return measured | self.batch_metrics

    def save(self, step: int, steps: Steps) -> checkpoint.Checkpoint | None:
        """Write a checkpoint to a temporary folder, then publish it. Returns it on rank 0.

        Args:
            step: Number of training steps done.
            steps: Metrics of all these steps, on rank 0. They are published with the weights, so
                that a kill keeps both or neither.
        """
        unfinished, published = Path(self.args.output_dir), None
        if self.accelerator.is_main_process:  # a killed save may have left files of other ranks
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        Trainer._save_checkpoint(self, self.wrapped_model, None)  # TRL's adds a model card
        self.accelerator.wait_for_everyone()
        written = unfinished / f"checkpoint-{self.state.global_step}"
        self.save_training_state(written)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            (written / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that is never read
            write_steps(written / METRICS, steps)
            write_recipe(written, self.experiment)
            published = checkpoint.publish(
                written, self._checkpoints, step, self.experiment.fingerprint()
            )
        self.accelerator.wait_for_everyone()
        return published

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy as a Hugging Face folder, also if its weights are sharded."""
        lora = self.experiment.policy.lora
        whole, corrections = (
            whole_policy(self.model) if lora is not None or self.sharded else None,
            adapters(self.model),
        )
        if self.args.should_save:
            self._save(output_dir, state_dict=whole)
            if lora is not None:
                save_adapter(
                    Path(output_dir or self.args.output_dir) / ADAPTER,
                    Adapter(corrections, lora),
                    self.policy,
                )

    def save_training_state(self, written: Path) -> None:
        """Write the state that resuming needs besides the weights. Every rank must call it."""
        save_optimiser(
            written / OPTIMISER, self.accelerator.unwrap_model(self.model), self.optimizer.optimizer
        )
        if self.accelerator.is_main_process:
            schedule = json.dumps(self.lr_scheduler.state_dict())
            (written / SCHEDULE).write_text(schedule, encoding="utf-8")
            if self.task_results:
                write_results(written / TASK_RESULTS, self.task_results)
            if self.experiment.rollout.stream:
                write_waiting(written / WAITING_GROUPS, self.waiting_groups)

    def load_training_state(self, written: Path) -> None:
        """Load the output of `save_training_state`, on any number of ranks.

        Raises:
            CheckpointError: A file of the state cannot be read.
        """
        load_optimiser(
            written / OPTIMISER, self.accelerator.unwrap_model(self.model), self.optimizer.optimizer
        )
        schedule = checkpoint.read_json(written / SCHEDULE)
        try:
            self.lr_scheduler.load_state_dict(schedule)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise checkpoint.CheckpointError(
                f"{written / SCHEDULE} is not a valid learning-rate schedule: {problem!r}"
            ) from problem
        if self.experiment.rollout.stream:
            self.waiting_groups = read_waiting(written / WAITING_GROUPS)
        try:
            self.task_results = read_results(written / TASK_RESULTS)
        except (KeyError, TypeError, ValueError) as problem:
            raise checkpoint.CheckpointError(
                f"{written / TASK_RESULTS} does not hold results of tasks: {problem!r}"
            ) from problem

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)  # another rank may not have made it yet
        save_random_states(Path(output_dir) / self._random_states_name())

    def _random_states_name(self) -> str:
        return f"random-{self.accelerator.process_index}-of-{self.accelerator.num_processes}.json"

    def _save_optimizer_and_scheduler(self, _: str) -> None: ...  # see `save_training_state`

    @torch.no_grad()
    def score(self, model: Any, tensors: Tensors) -> torch.Tensor:
        """Return the log-probabilities of the completions under `model`, shape (B, T), on the CPU.

        They are computed at the temperature of the rollouts.
        """
        length = tensors["completion_mask"].size(1)
        ids = tensors["input_ids"].to(self.accelerator.device)
        mask = tensors["attention_mask"].to(self.accelerator.device)
        with self.accelerator.autocast():
            if packs(model):
                packed = pack(ids, mask, share=False)
                every = model(**packed.inputs(model), use_cache=False).logits[0]
                logits = every[packed.places[:, -length - 1 : -1]]
            else:
                logits = model(
                    input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=length + 1
                ).logits[:, :-1]
        logps = torch.log_softmax(logits.float() / self.experiment.rollout.temperature, dim=-1)
        scores: torch.Tensor = logps.gather(2, ids[:, -length:].unsqueeze(2)).squeeze(2).cpu()
        return scores

    def scores_of(
        self,
        score: Callable[[Tensors], torch.Tensor],
        trajectories: Sequence[Trajectory],
        extra: int = 0,
    ) -> list[torch.Tensor]:
        """Compute a score for each token, in micro-batches.

        Args:
            score: Computes the scores of a micro-batch, shape (B, T + extra).
            trajectories: The trajectories, of one or several rows each.
            extra: Number of scores after the last token.

        Returns:
            One row per trajectory, with one column per completion token and `extra` more.
        """
        rows = [row for t in trajectories for row in t.rows]
        scores = [torch.zeros(0)] * len(rows)
        for part in self.parts(self.micro_batch_rows(rows), self.experiment.algorithm.mini_batches):
            self.beat()
            # Run even on an empty micro-batch: under FSDP every rank must do the same number of
            # forward passes.
            tensors = pad_trajectories([rows[i] for i in part], self.processing_class.pad_token_id)
            for i, scored in zip(part, score(tensors).cpu()[: len(part)], strict=True):
                scores[i] = scored[: len(rows[i].completion) + extra]
        in_order, joined = iter(scores), []
        for t in trajectories:
            *earlier, last = [(next(in_order), len(row.completion)) for row in t.rows]
            joined.append(torch.cat([*(scored[:length] for scored, length in earlier), last[0]]))
        return joined

    def score_continuations(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log-probabilities of each continuation's tokens under the current weights.

        Each continuation follows its prompt.
        """
        padded = pad_trajectories(
            [
                Trajectory(
                    "",
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    "",
                    prompt=list(prompt),
                    turns=[Turn(list(tokens), [0.0] * len(tokens), "")],
                )
                for prompt, tokens in zip(prompts, continuations, strict=True)
            ],
            self.processing_class.pad_token_id,
        )
        scores = self.score(self.model, padded)
        return [
            row[: len(tokens)].tolist() for row, tokens in zip(scores, continuations, strict=True)
        ]

    def all_reduce_sum(self, sums: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks. The result is on the CPU."""
        added: torch.Tensor = self.accelerator.reduce(
            sums.to(self.accelerator.device), reduction="sum"
        ).cpu()
        return added / self.context_parallel.ranks if self.context_parallel else added

    def all_reduce_max(self, values: torch.Tensor) -> torch.Tensor:
        """Take the elementwise maximum of a tensor over all ranks. The result is on the CPU."""
        maxima: torch.Tensor = self.accelerator.gather(
            values.to(self.accelerator.device).unsqueeze(0)
        )
        return maxima.max(dim=0).values.cpu()

    def count_everywhere(self, count: int) -> int:
        """Sum a count over all ranks."""
        return int(self.all_reduce_sum(torch.tensor(count)).item())
