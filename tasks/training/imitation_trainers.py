"""The trainers of the imitation methods: TRL's SFTTrainer and DPOTrainer on recorded tokens.

Only the policy's tokens carry loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase
from trl import DPOTrainer, SFTTrainer

from configs.experiment import Experiment
from configs.imitation import DPO, Imitation
from configs.launch import Sharding
from tasks.rollout.trajectory import Trajectory
from tasks.training.base_trainer import BaseTrainer
from tasks.training.lora import set_adapters
from tasks.training.micro_batches import (
    PaddedRows,
    context_length,
    length_of,
)
from tasks.training.model_loading import load_model
from tasks.training.packing import pack, packs, score_places, share_prefixes, shares_prefixes
from tasks.training.process_group import gather_ragged
from tasks.training.recomputation import recompute_activations
from tasks.training.row_tensors import Tensors, pad_trajectories
from tasks.training.sharding import scatter_weights
from tasks.training.trl_config import cloning_config, preference_config


class CloningTrainer(BaseTrainer, SFTTrainer):
    """Maximum likelihood of the policy's tokens: -1/N sum of log pi(token).

    N is the number of policy tokens in the mini-batch on all ranks. sft trains on trajectories that
    are recorded, or explored once. agentevol trains on the policy's own successes
    (arXiv 2406.04151, section 4).
    """

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        sharding: Sharding = "none",
    ) -> None:
        """Load the policy. The arguments are those of `PolicyGradientTrainer`."""
        self.begin(experiment, policy, folder, sharding)
        SFTTrainer.__init__(
            self,
            model=self.load_policy(),
            args=cloning_config(experiment, folder),
            # TRL requires one.
            train_dataset=Dataset.from_list([{"input_ids": [0, 0], "labels": [0, 0]}]),
            processing_class=tokenizer,
        )
        share_prefixes(self.model, experiment.policy)
        score_places(self.model)

    def mini_batches_of(self, trajectories: list[Trajectory], step: int) -> list[list[Tensors]]:
        """Split the trajectories, in order, into mini-batches."""
        algorithm, mini_batches = self.experiment.algorithm, list[list[Tensors]]()
        if isinstance(algorithm, Imitation) and algorithm.restarts(step):
            self.restart()
        for first in range(algorithm.mini_batches):
            share = trajectories[first :: algorithm.mini_batches]
            tokens = self.count_everywhere(sum(sum(t.policy_mask) for t in share))
            share = [row for t in share for row in t.rows]
            micro_batches = list[Tensors]()
            for part in self.parts(
                self.micro_batch_rows(share, [context_length(row) for row in share])
            ):
                tensors = _sequences([share[i] for i in part], self.processing_class.pad_token_id)
                labels = tensors["input_ids"].masked_fill(tensors.pop("completion_mask") == 0, -100)
                micro_batches.append(
                    {**tensors, "labels": labels, "tokens": torch.tensor(max(1.0, tokens))}
                )
            mini_batches.append(micro_batches)
        return mini_batches

    def update_metrics(self) -> dict[str, float]:
        """Return the metrics of `BaseTrainer.update_metrics`, without TRL's own.

        TRL's are unweighted means over micro-batches.
        """
        self._metrics["train"].clear()
        return super().update_metrics()

    def restart(self) -> None:
        """Reset the policy to its initial weights, with a new optimiser state and schedule."""
        model = self.accelerator.unwrap_model(self.model)
        if self.experiment.policy.lora is not None:
            set_adapters(model, self.first_adapters)
        else:
            start = load_model(self.policy, sharded=self.sharded, dtype=torch.float32).state_dict()
            scatter_weights(model, start) if self.sharded else model.load_state_dict(start)
        self.optimizer.optimizer.state.clear()
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self.lr_scheduler = None
        self.create_scheduler(
            self.experiment.algorithm.steps * self.experiment.algorithm.updates_per_step
        )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return TRL's loss, normalised by the tokens of our mini-batch instead of TRL's batch."""
        tokens = inputs.pop("tokens")
        if num_items_in_batch is None:  # the loop divides by the number of micro-batches
            tokens = tokens / self.current_gradient_accumulation_steps
        if packs(self.model):
            ids, scored = inputs["input_ids"], inputs["labels"] != -100
            # The mean counts each row's tokens, so only what comes before them is shared.
            packed = pack(
                ids,
                inputs["attention_mask"],
                share=shares_prefixes(self.model),
                repeated=scored,
            )
            inputs = packed.inputs(self.model) | packed.targets(ids, scored)[0]
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=tokens)


class PreferenceTrainer(BaseTrainer, DPOTrainer):
    """DPO (arXiv 2305.18290, equation 7) on two trajectories of the same task.

    The loss is -1/N sum of log sigmoid(beta * (log-ratio of the success - log-ratio of the
    failure)). A log-ratio is the sum over the policy's tokens of log pi - log pi_start. N is the
    number of pairs in the mini-batch on all ranks. `cloning_weight` times the loss of
    CloningTrainer on the successes is added.
    """

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        sharding: Sharding = "none",
    ) -> None:
        """Load the policy and its reference. The arguments are those of `PolicyGradientTrainer`."""
        assert isinstance(experiment.algorithm, DPO)
        self.algorithm = experiment.algorithm
        self.begin(experiment, policy, folder, sharding)
        DPOTrainer.__init__(
            self,
            model=self.load_policy(),
            ref_model=self.load_reference(),
            args=preference_config(experiment, self.algorithm, folder),
            # TRL requires one.
            train_dataset=Dataset.from_list(
                [{"prompt_ids": [0], "chosen_ids": [0], "rejected_ids": [0]}]
            ),
            processing_class=tokenizer,
        )
        # For TRL's metrics: micro-batches differ in size.
        self.accelerator.gather = gather_ragged(self.accelerator)
        self._pairs_preferred, self._pairs_seen = 0.0, 0.0

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def mini_batches_of(self, trajectories: list[Trajectory], step: int) -> list[list[Tensors]]:
        """Split the pairs, in order, into mini-batches.

        In each micro-batch all successes come first, as TRL requires.
        """
        algorithm, mini_batches = self.algorithm, list[list[Tensors]]()
        pairs = list(zip(trajectories[::2], trajectories[1::2], strict=True))
        for first in range(algorithm.mini_batches):
            share = pairs[first :: algorithm.mini_batches]
            count = self.count_everywhere(len(share))
            tokens = self.count_everywhere(sum(sum(success.policy_mask) for success, _ in share))
            micro_batches = list[Tensors]()
            parts = self.parts(PaddedRows([2 * max(length_of(t) for t in pair) for pair in share]))
            for part in parts:
                tensors = _sequences(
                    [share[i][side] for side in (0, 1) for i in part],
                    self.processing_class.pad_token_id,
                )
                if not part:  # one masked row becomes a masked pair
                    tensors = {name: tensor.repeat(2, 1) for name, tensor in tensors.items()}
                # TRL takes the mean over a micro-batch, and ours differ in size. Weight each by its
                # share.
                passes = len(parts) * self.accelerator.num_processes
                weight = passes * len(part) / max(1, count)
                cloning = (
                    algorithm.cloning_weight
                    * passes
                    * sum(sum(share[i][0].policy_mask) for i in part)
                    / max(1, tokens)
                )
                micro_batches.append(
                    {
                        **tensors,
                        "weights": torch.tensor([weight, cloning]),
                        "pairs": torch.tensor(len(part)),
                    }
                )
            mini_batches.append(micro_batches)
        return mini_batches

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Weight TRL's losses by the micro-batch's shares of the mini-batch's pairs and tokens."""
        # TRL's pass of the reference enables it for all blocks when it ends.
        recompute_activations(self.model, self.experiment.policy.gradient_checkpointing)
        weights, pairs = inputs.pop("weights").tolist(), inputs.pop("pairs")
        # An empty micro-batch holds one masked pair.
        rows = torch.full_like(pairs, len(inputs["input_ids"]) // 2)
        self.loss_types, self.loss_weights = (
            (["sigmoid", "sft"], weights) if weights[1] else (["sigmoid"], weights[:1])
        )
        loss = super().compute_loss(model, inputs, False, num_items_in_batch)
        rows, pairs = self.all_reduce_sum(torch.stack([rows, pairs])).tolist()
        self._pairs_preferred += self._metrics["train"]["rewards/accuracies"].pop() * rows
        self._pairs_seen += pairs
        return loss

    def update_metrics(self) -> dict[str, float]:
        """Add update/preferred_share to the metrics.

        It is the share of pairs in which the success has the larger log-ratio.
        """
        share = self._pairs_preferred / max(1.0, self._pairs_seen)
        self._pairs_preferred, self._pairs_seen = 0.0, 0.0
        self._metrics["train"].clear()
        return {**super().update_metrics(), "update/preferred_share": share}


def _sequences(trajectories: Sequence[Trajectory], pad_token: int) -> Tensors:
    """Pad trajectories into sequences with left-padded prompts.

    Returns:
        input_ids, attention_mask and completion_mask (1 on the policy's tokens), each of shape
        (B, P + T).
    """
    padded = pad_trajectories(trajectories, pad_token)
    ids, policy_mask = padded["input_ids"], padded["tool_mask"]
    return {
        "input_ids": ids,
        "attention_mask": padded["attention_mask"],
        "completion_mask": pad(policy_mask, (ids.size(1) - policy_mask.size(1), 0)),
    }
