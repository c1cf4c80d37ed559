"""The trainer of the RL methods, on groups of multi-turn trajectories.

The data are token ids throughout. Only the policy's tokens carry loss. `policy_loss` has the loss.
TRL's fused head computes log-probabilities without the logits of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl.trainer.utils import add_fused_lm_head

from configs.experiment import Experiment
from configs.launch import Sharding
from configs.policy_gradient import PolicyGradient
from tasks.inference.teacher_server import TeacherServer
from tasks.inference.weight_sync_check import WeightSyncError
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.base_trainer import BaseTrainer
from tasks.training.critic import Critic
from tasks.training.groups import learnable_groups, reward_range
from tasks.training.micro_batches import balanced, by_mini_batch
from tasks.training.off_policy import LossTokens, OffPolicyMeter, importance_weights
from tasks.training.out_of_sync import (
    EPISODES,
    GAP,
    TOLERATED,
    compare,
    mark_failed,
    out_of_sync_note,
)
from tasks.training.packing import (
    balance_coefficient,
    score_places,
    share_prefixes,
    shares_prefixes,
)
from tasks.training.policy_loss import clipped_tokens, kept_tokens, policy_loss, sequence_old
from tasks.training.reference import Reference
from tasks.training.row_tensors import Tensors, loss_tensors, pad_trajectories, padded
from tasks.training.token_scores import log_probabilities, token_scores
from tasks.training.train_samples import TrainSample, train_samples
from tasks.training.trl_config import policy_gradient_config
from tasks.training.update_metrics import UpdateMetrics


class NothingToLearnError(RuntimeError):
    """A batch has no usable trajectory."""

    def __init__(self, step: int, reasons: Sequence[str]) -> None:
        super().__init__(f"step {step} has no group to train on. Reasons: {'; '.join(reasons)}")


class PolicyGradientTrainer(BaseTrainer):
    """Policy-gradient updates from multi-turn trajectories."""

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        sharding: Sharding = "none",
    ) -> None:
        """Load the policy and, if the method uses them, the reference and the critic.

        Args:
            experiment: The recipe; its algorithm is a `PolicyGradient`.
            policy: Hugging Face name or folder of the policy that training starts from. It is also
                the reference of the KL term.
            tokenizer: The policy's tokenizer.
            folder: The run's folder, which will contain the checkpoints.
            sharding: How to shard all models across ranks.
        """
        assert isinstance(experiment.algorithm, PolicyGradient)
        self.algorithm = algorithm = experiment.algorithm
        self.begin(experiment, policy, folder, sharding)
        self._updates_of_batch = 0
        self._extra_metrics = UpdateMetrics(algorithm.update_metrics)
        self._meter = OffPolicyMeter(algorithm.importance_correction, algorithm.importance_cap)
        rollout = experiment.rollout
        model = self.load_policy()
        add_fused_lm_head(model, rollout.temperature, outputs=("log_probs", "entropy"))
        score_places(share_prefixes(model, experiment.policy))
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        super().__init__(
            model=model,
            args=policy_gradient_config(experiment, folder),
            processing_class=tokenizer,
        )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"this process sees {self.args.n_gpu} GPUs; start one process per GPU, or set "
                "CUDA_VISIBLE_DEVICES to one of them"
            )
        self._balance_coefficient = balance_coefficient(model)
        self.ref_model: Any = None
        other, server = algorithm.reference_model(), algorithm.reference_server()
        if other is not None:
            check_same_vocabulary(other, tokenizer)
        if server is None:
            self.teacher = None
        else:
            self.teacher = TeacherServer(
                server, tokenizer, rollout.trajectory_tokens, rollout.request_seconds
            )
        if (
            server is None
            and algorithm.kl_coefficient
            and (other or experiment.policy.lora is None)
        ):
            self.ref_model = self.load_reference(other).to(self.accelerator.device)
            add_fused_lm_head(self.ref_model, temperature=rollout.temperature)
            score_places(share_prefixes(self.ref_model, experiment.policy))
        self.reference = Reference(self.model, self.ref_model, self.teacher, self.accelerator)
        self._has_kl_loss = algorithm.kl_in == "loss" and algorithm.kl_coefficient > 0
        self.critic: Critic | None = None
        if (settings := algorithm.value_function()) is not None:
            self.critic = Critic(
                policy,
                settings,
                self.accelerator.device,
                self.compute_dtype,
                experiment.policy,
                sharding,
            )

    def outside_seconds(self, trajectories: Sequence[Trajectory]) -> float:
        """Return the most seconds that the teacher's server takes for a batch."""
        if self.teacher is None:
            return 0.0
        return self.teacher.longest_seconds(sum(len(t.rows) for t in trajectories))

    def mini_batches_of(self, trajectories: list[Trajectory], step: int) -> list[list[Tensors]]:
        """Compute the advantages of all groups and return the batch as tensors.

        Episodes whose sampled log-probabilities do not match the trainer's weights count as failed
        (see `compare`). The arguments are those of `BaseTrainer.mini_batches_of`.

        Raises:
            NothingToLearnError: No rank has a usable trajectory.
            WeightSyncError: No trajectory is left because the engine sampled with other weights.
        """
        algorithm, self._updates_of_batch = self.algorithm, 0
        self.out_of_sync, self.batch_metrics = frozenset(), {EPISODES: 0.0}
        self.policy_learns = self.critic is None or step >= self.critic.settings.pretraining_steps
        score = partial(
            log_probabilities, self.model, accelerator=self.accelerator, ranks=self.context_parallel
        )
        if self.context_parallel is not None:
            trajectories = self.context_parallel.gathered(trajectories)
        while True:
            samples = self.samples_of(trajectories, step)
            gaps, scores = compare(
                trajectories,
                {
                    sample.trajectory.group
                    for sample in samples
                    if sample.advantages.any() or not self._learns_by_advantages_alone
                },
                step,
                self.experiment.policy.dtype,
                partial(self.scores_of, score),
                self.count_everywhere,
            )
            foreign = [t for t in trajectories if id(t) in gaps and gaps[id(t)].is_foreign]
            found = gather_object([(t.group, t.member) for t in foreign])
            if not found:
                break
            trajectories = mark_failed(trajectories, found)
            self.out_of_sync |= frozenset(found)
            pairs = [(0.0, 0.0), *((gaps[id(t)].mean, gaps[id(t)].allowed) for t in foreign)]
            largest = torch.tensor(pairs, dtype=torch.float64).nan_to_num(torch.finfo().max).amax(0)
            mean, allowed = self.all_reduce_max(largest).tolist()
            count = float(len(self.out_of_sync))
            self.batch_metrics |= {EPISODES: count, GAP: mean, TOLERATED: allowed}
        if algorithm.importance_correction != "behaviour":
            samples = [replace(s, scores=scores.get(id(s.trajectory))) for s in samples]
        if algorithm.truncated == "masked":
            samples = [
                sample for sample in samples if sample.trajectory.outcome is not Outcome.TRUNCATED
            ]
        shares = by_mini_batch(
            samples, self.experiment.rollout.group_size, step, algorithm.mini_batches
        )
        if algorithm.micro_batch_tokens is not None:
            shares = [
                balanced(
                    share,
                    self.accelerator.process_index,
                    self.accelerator.num_processes,
                    share=shares_prefixes(self.model),
                    ranks_per_row=self.context_parallel.ranks if self.context_parallel else 1,
                )
                for share in shares
            ]
        self.loss_record.begin(
            (sample.trajectory, sample.advantages) for share in shares for sample in share
        )
        return [self._mini_batch(share) for share in shares]

    def samples_of(self, trajectories: list[Trajectory], step: int) -> list[TrainSample]:
        """Compute the advantages and the value targets of the usable groups of this rank.

        Raises:
            NothingToLearnError: No rank has a usable trajectory.
            WeightSyncError: No trajectory is left because the engine sampled with other weights.
        """
        algorithm = self.algorithm
        groups = learnable_groups(trajectories, algorithm.compares_groups)
        if self.count_everywhere(len(groups.kept)) == 0:
            if note := out_of_sync_note(step, self.batch_metrics):
                raise WeightSyncError(f"no episode is left to train on. {note}")
            reasons = sorted({t.reason for t in trajectories if t.reason})
            raise NothingToLearnError(step, reasons[:3])
        kept = [group for group in groups.kept if reward_range(group) >= algorithm.min_reward_range]
        usable = [t for group in kept for t in group]
        ages = [step - turn.policy_version for t in usable for turn in t.turns]
        age = int(self.all_reduce_max(torch.tensor(max(ages, default=0))))
        references = values = None
        if algorithm.kl_in == "reward":
            references = self.scores_of(
                partial(self.reference.log_probabilities, ranks=self.context_parallel), usable
            )
        if self.critic is not None:
            with torch.no_grad():
                values = self.scores_of(
                    partial(self.critic.values, ranks=self.context_parallel), usable, extra=1
                )
        samples, metrics = train_samples(usable, algorithm, values, references, self.all_reduce_sum)
        self.batch_metrics |= metrics | {
            "update/groups_filtered": float(self.count_everywhere(len(groups.kept) - len(kept))),
            "update/staleness_largest": float((age + 1) * algorithm.updates_per_step - 1),
        }
        return samples

    @property
    def _learns_by_advantages_alone(self) -> bool:
        """Whether an episode whose advantages are 0 adds nothing to the gradient."""
        return not (self._has_kl_loss or self.algorithm.entropy_coefficient or self.critic)

    @torch.no_grad()
    def _mini_batch(self, samples: Sequence[TrainSample]) -> list[Tensors]:
        """Return the micro-batches of one optimiser update.

        They include the log-probabilities that the loss compares with: under the old policy and the
        reference. The importance weights multiply the advantages.
        """
        algorithm = self.algorithm
        tokens = self.count_everywhere(
            sum(len(turn.tokens) for sample in samples for turn in sample.trajectory.turns)
        )
        trajectories = self.count_everywhere(len(samples))
        count = max(1, tokens if algorithm.loss_aggregation == "tokens" else trajectories)
        places = self.count_everywhere(
            sum(int(sample.values.mask.sum()) for sample in samples if sample.values is not None)
        )
        if self._learns_by_advantages_alone:  # the tokens of the others still count in the mean
            samples = [sample for sample in samples if sample.advantages.any()]
        samples = [
            row
            for sample in samples
            for row in sample.rows(mean_of_trajectory=algorithm.loss_aggregation == "trajectory")
        ]
        rows = self.micro_batch_rows([sample.trajectory for sample in samples])
        micro_batches, parts = [], self.parts(rows)
        is_scored = algorithm.importance_correction != "behaviour" and not self.count_everywhere(
            sum(sample.scores is None for sample in samples)
        )
        for part in parts:
            self.beat()
            chosen = [samples[i] for i in part]
            tensors = pad_trajectories(
                [sample.trajectory for sample in chosen], self.processing_class.pad_token_id
            ) | loss_tensors(chosen)
            tensors["loss_count"] = torch.tensor(count / self.accelerator.num_processes)
            if self.critic is not None:
                tensors["value_count"] = torch.tensor(float(places))
            sampled = tensors["sampling_per_token_logps"]
            if algorithm.importance_correction == "behaviour":
                tensors["old_per_token_logps"] = sampled
            else:
                known = [sample.scores for sample in chosen if sample.scores is not None]
                old = (
                    padded(known or [torch.zeros(1)], 0.0, torch.float32)
                    if is_scored
                    else log_probabilities(
                        self.model, tensors, self.accelerator, self.context_parallel
                    )
                )
                tensors["old_per_token_logps"] = old
                gap = (old - sampled) * tensors["completion_mask"] * tensors["tool_mask"]
                weights = importance_weights(
                    gap, algorithm.importance_correction, algorithm.importance_cap
                )
                tensors["advantages"] = tensors["advantages"] * weights
            if self._has_kl_loss:
                tensors["ref_per_token_logps"] = self.reference.log_probabilities(
                    tensors, self.context_parallel
                )
            micro_batches.append(tensors)
        return micro_batches

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Add the gradients of a micro-batch, and return its share of the loss."""
        model.train()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return a micro-batch's share of the loss, and record the loss's tokens."""
        algorithm, sampled = self.algorithm, inputs["sampling_per_token_logps"]
        balances = self._balance_coefficient > 0
        logps, entropies, balance = token_scores(
            model, inputs, self.accelerator, self.context_parallel, balances=balances
        )
        mask, advantages = inputs["completion_mask"] * inputs["tool_mask"], inputs["advantages"]
        old = inputs["old_per_token_logps"]
        if algorithm.ratio == "sequence":
            old = sequence_old(logps, old, mask)
        kept = mask
        if (threshold := algorithm.off_policy_mask) is not None:
            kept = kept_tokens(advantages, logps, sampled, mask, threshold)
        reference = inputs["ref_per_token_logps"] if self._has_kl_loss else None
        tokens = LossTokens(logps, sampled, old, advantages, entropies, mask, kept, reference)
        longest = self.experiment.rollout.trajectory_tokens
        loss = policy_loss(tokens, algorithm, inputs["loss_count"], longest)
        if balances:  # an empty micro-batch has a masked row, whose balance does not count
            share = mask.any() / self.current_gradient_accumulation_steps
            loss = loss + self._balance_coefficient * balance * share
        self.loss_record.note(inputs, tokens)
        clipped = clipped_tokens(tokens, algorithm)
        self._meter.add(tokens, clipped, first_update=self._updates_of_batch == 0)
        self._extra_metrics.add(tokens)
        return loss

    def update_metrics(self) -> dict[str, float]:
        """Return the metrics of `BaseTrainer.update_metrics`, off-policy and additional ones.

        Raises:
            ValueError: An additional metric has the name of a built-in one.
        """
        metrics = super().update_metrics() | self._meter.take(
            self.all_reduce_sum, self.all_reduce_max
        )
        extra = self._extra_metrics.take(self.all_reduce_sum)
        if clash := sorted(metrics.keys() & extra.keys()):
            raise ValueError(
                f"algorithm.update_metrics has {clash[0]}, a built-in metric; rename the entry "
                "point"
            )
        return metrics | extra

    def add_gradient(self, micro_batch: Tensors, number: int, of: int) -> None:
        """Add the gradients of the policy and the critic for a micro-batch.

        The critic runs after the policy's activations are freed. The arguments are those of
        `BaseTrainer.add_gradient`.
        """
        super().add_gradient(micro_batch, number, of)
        if self.critic is not None:
            self.critic.add_gradient(
                {name: tensor.to(self.accelerator.device) for name, tensor in micro_batch.items()},
                self.context_parallel,
            )

    def optimiser_step(self) -> None:
        """Update the critic, then the policy."""
        if self.critic is not None:
            pretrained = self.critic.settings.pretraining_steps > 0
            if pretrained:
                lr_scale = 1.0
            else:
                lr_scale = self.optimizer.param_groups[0]["lr"] / self.args.learning_rate
            self.measure({"critic/loss": self.critic.update(lr_scale)})
        super().optimiser_step()
        self._updates_of_batch += 1

    def score(self, model: Any, tensors: Tensors) -> torch.Tensor:
        """Return what `BaseTrainer.score` does. Packed rows are scored at the policy's tokens only."""
        return log_probabilities(model, tensors, self.accelerator)

    def save_training_state(self, written: Path) -> None:
        """Save the state of `BaseTrainer.save_training_state` and the critic."""
        super().save_training_state(written)
        if self.critic is not None:
            self.critic.save(written)

    def load_training_state(self, written: Path) -> None:
        """Load the state of `BaseTrainer.load_training_state` and the critic."""
        super().load_training_state(written)
        if self.critic is not None:
            self.critic.load(written)


def check_same_vocabulary(teacher: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a teacher reads the policy's token ids.

    Raises:
        ValueError: Its tokenizer has other tokens.
    """
    if AutoTokenizer.from_pretrained(teacher).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"algorithm.teacher: {teacher} has another vocabulary than the policy; choose a "
            "teacher of the same model family"
        )
