"""A plain float64 reference of the update, written from the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.micro_batches import mini_batch_of
from tests.support.recorded import (
    MEMBERS,
    RecordedBatches,
    small_experiment,
    train,
    trainer_of,
)

Weights = dict[str, torch.Tensor]


class Recorder:
    """A recorder of the weights and gradients at every update."""

    def __init__(self, trainer: Any) -> None:
        critic = getattr(trainer, "critic", None)
        self.models = {"policy": trainer.model} | ({"critic": critic.model} if critic else {})
        self.updates: list[dict[str, tuple[Weights, Weights]]] = []
        trainer.optimizer.optimizer.register_step_pre_hook(lambda *_: self.note("policy"))
        if critic:
            critic.optimiser.register_step_pre_hook(lambda *_: self.note("critic"))

    def note(self, which: str) -> None:
        if not self.updates or which in self.updates[-1]:
            self.updates.append({})
        parameters = dict(self.models[which].named_parameters())
        weights = {name: p.detach().double().clone() for name, p in parameters.items()}
        self.updates[-1][which] = (
            weights,
            {name: p.grad.double().clone() for name, p in parameters.items() if p.grad is not None},
        )


def check_gradients(
    fields: dict[str, Any], batch: list[Trajectory], policy: str, folder: Path
) -> None:
    """Compare the trainer's gradients in four updates of a batch with the reference."""
    experiment = small_experiment(**{"mini_batches": 2, "micro_batches": 3, "epochs": 2, **fields})
    trainer = trainer_of(experiment, policy, folder)
    # In float32 rounding alone causes differences of 1e-5, which would hide small errors.
    for model in (trainer.model, trainer.ref_model, trainer.critic and trainer.critic.model):
        if model is not None:
            model.double()
    recorder = Recorder(trainer)
    train(trainer, RecordedBatches(policy, batch=batch), 1)
    assert len(recorder.updates) == 4
    models = {"policy": AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).eval()}
    if experiment.algorithm.name == "distillation":
        models["teacher"] = AutoModelForCausalLM.from_pretrained(
            experiment.algorithm.teacher, dtype=torch.float64
        ).eval()
    if trainer.critic:
        models["critic"] = deepcopy(trainer.critic.model).double()
    expected = reference_updates(batch, experiment.algorithm, models, recorder)
    for update, gradients in zip(recorder.updates, expected, strict=True):
        for which, reference in gradients.items():
            ours = torch.cat([update[which][1][name].flatten() for name in reference])
            right = torch.cat([g.flatten() for g in reference.values()])
            assert float(right.norm()) > 1e-4, which
            assert float((ours - right).norm() / right.norm()) < 1e-5, which


# The reference: one trajectory at a time, without padding, in float64.


def distributions(model: Any, t: Trajectory) -> torch.Tensor:
    """Return the log-probabilities of all tokens at the policy's positions.

    Shape: (policy tokens, vocabulary).
    """
    if len(t.rows) > 1:
        return torch.cat([distributions(model, row) for row in t.rows])
    logps = torch.log_softmax(
        model(input_ids=torch.tensor([t.prompt + t.completion])).logits[0], dim=-1
    )
    return logps[len(t.prompt) - 1 : -1][torch.tensor(t.policy_mask).bool()]


def log_probabilities(model: Any, t: Trajectory) -> torch.Tensor:
    written = torch.tensor([token for turn in t.turns for token in turn.tokens])
    return distributions(model, t).gather(1, written.unsqueeze(1)).squeeze(1)


def values_of(critic: Any, t: Trajectory) -> torch.Tensor:
    if len(t.rows) > 1:
        *earlier, last = [values_of(critic, row) for row in t.rows]
        return torch.cat([*(values[:-1] for values in earlier), last])
    ids = torch.tensor([t.prompt + t.completion])
    return critic(input_ids=ids)[0, len(t.prompt) - 1 :]


def advantages_of(
    batch: list[Trajectory], a: Any, kl: list[torch.Tensor], values: list[torch.Tensor]
) -> list[list[float]]:
    """Return the advantage of each policy token, before any normalisation over the batch."""
    groups = [[o for o in batch if o.group == t.group] for t in batch]
    found: list[list[float]] = []
    for i, t in enumerate(batch):
        others = [o.reward for o in groups[i]]
        relative = (t.reward - fmean(others)) / (
            stdev(others) + 1e-4 if a.scale_advantages == "group" else 1
        )
        lengths = [len(turn.tokens) for turn in t.turns]
        rewards = [
            turn.reward if place + 1 == n else 0.0
            for turn, n in zip(t.turns, lengths, strict=True)
            for place in range(n)
        ]
        rewards = (
            [r - a.kl_coefficient * float(k) for r, k in zip(rewards, kl[i], strict=True)]
            if a.kl_in == "reward"
            else rewards
        )
        token = [relative] * sum(lengths)
        if a.name == "rloo":
            token = [t.reward - (sum(others) - t.reward) / (len(others) - 1)] * sum(lengths)
        elif a.name == "distillation":
            token = [-a.kl_coefficient * float(k) for k in kl[i]]
        elif a.name == "reinforce++":
            token = [
                sum(a.discount ** (u - v) * rewards[u] for u in range(v, len(rewards)))
                for v in range(len(rewards))
            ]
        elif a.name == "ppo":
            at = [place for place, bit in enumerate(t.policy_mask) if bit]
            cut = a.truncated == "bootstrapped" and t.outcome is Outcome.TRUNCATED
            v = [float(values[i][place]) for place in at] + [float(values[i][-1]) if cut else 0.0]
            deltas = [rewards[k] + a.discount * v[k + 1] - v[k] for k in range(len(at))]
            token = [
                sum((a.discount * a.gae_lambda) ** (u - k) * deltas[u] for u in range(k, len(at)))
                for k in range(len(at))
            ]
        elif a.name == "gigpo":
            seen: dict[str, list[float]] = {}
            for o in groups[i]:
                for k in range(len(o.turns)):
                    seen.setdefault(state(o, k), []).append(to_go(o, k, a.discount))
            step = [to_go(t, k, a.discount) - fmean(seen[state(t, k)]) for k in range(len(t.turns))]
            step = [
                s / (stdev(seen[state(t, k)]) + 1e-4) if len(seen[state(t, k)]) > 1 else 0.0
                for k, s in enumerate(step)
            ]
            token = [
                relative + a.step_weight * step[k] for k, n in enumerate(lengths) for _ in range(n)
            ]
        found.append(token)
    return found


def state(t: Trajectory, turn: int) -> str:
    return t.turns[turn - 1].observation if turn else t.first_observation


def to_go(t: Trajectory, turn: int, gamma: float) -> float:
    return sum(gamma**k * later.reward for k, later in enumerate(t.turns[turn:]))


def token_losses(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, weight: torch.Tensor, a: Any
) -> torch.Tensor:
    ratio = (new - old).exp()
    if a.ratio == "sequence":  # the sequence's ratio, with a gradient for each token
        ratio = (new - old).mean().exp().detach() * (new - new.detach()).exp()
    if a.loss == "cispo":  # arXiv 2506.13585, equations 4 and 5
        return -(new - old).exp().detach().clamp(max=1 + a.clip_high) * advantage * new * weight
    if a.loss == "sapo":  # arXiv 2511.20347, equations 5 and 6
        temperature = torch.where(advantage * weight > 0, 1.0, 1.05)
        return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantage * weight
    if (
        a.loss == "vespo"
    ):  # arXiv 2602.10693: phi(w) = w^k exp(lambda (1 - w)) of the trajectory's ratio
        power, decay = torch.where(advantage >= 0, 2.0, 3.0), torch.where(advantage >= 0, 3.0, 2.0)
        w = (new - old).sum().exp().detach()
        return -(w**power) * (decay * (1 - w)).exp() * advantage * new
    bounded = ratio.clamp(1 - a.clip_low, 1 + a.clip_high)
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    if a.dual_clip is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, a.dual_clip * advantage), gain)
    return -gain * weight


def importance_weight(gaps: torch.Tensor, a: Any) -> torch.Tensor:
    if a.importance_correction == "behaviour":
        return torch.ones(())
    weight = gaps.exp().prod() if "sequence" in a.importance_correction else gaps.exp()
    beyond = 0.0 if "masked" in a.importance_correction else a.importance_cap
    return torch.where(weight > a.importance_cap, beyond, weight)


def reference_updates(
    batch: list[Trajectory], a: Any, models: dict[str, Any], recorder: Recorder
) -> Iterator[dict[str, Weights]]:
    """Yield the reference gradients of each update, at the weights before that update."""
    first = {which: weights for which, (weights, _) in recorder.updates[0].items()}
    start = {which: load(model, first[which]) for which, model in models.items() if which in first}
    sampled = [
        torch.tensor([x for turn in t.turns for x in turn.log_probabilities]).double()
        for t in batch
    ]
    with torch.no_grad():
        # Also those of the reference policy, because nothing has been learnt yet.
        before = [log_probabilities(start["policy"], t) for t in batch]
        values = [
            values_of(start["critic"], t)
            if "critic" in start
            else torch.zeros(len(t.completion) + 1)
            for t in batch
        ]
        judged = (
            [log_probabilities(models["teacher"], t) for t in batch]
            if "teacher" in models
            else before
        )
    raw = advantages_of(batch, a, [s - j for s, j in zip(sampled, judged, strict=True)], values)
    flat = [x for row in raw for x in row]
    token = (
        [[(x - fmean(flat)) / stdev(flat) for x in row] for row in raw]
        if a.scale_advantages == "batch"
        else raw
    )
    old = sampled if a.importance_correction == "behaviour" else before
    weights = [importance_weight(b - s, a) for b, s in zip(before, sampled, strict=True)]
    for number, update in enumerate(recorder.updates):
        chosen = [
            i
            for i, t in enumerate(batch)
            if mini_batch_of(t.group, t.member, MEMBERS, 0, 2) == number % 2
        ]
        chosen = [
            i
            for i in chosen
            if a.truncated != "masked" or batch[i].outcome is not Outcome.TRUNCATED
        ]
        model = load(models["policy"], update["policy"][0])
        loss = torch.zeros((), dtype=torch.float64)
        count = {
            "tokens": sum(len(raw[i]) for i in chosen),
            "trajectory": len(chosen),
            "constant": len(chosen) * 1024,
        }[a.loss_aggregation]
        for i in chosen:
            new = log_probabilities(model, batch[i])
            losses = token_losses(new, old[i], torch.tensor(token[i]).double(), weights[i], a)
            if a.entropy_coefficient:
                every = distributions(model, batch[i])
                losses = losses + a.entropy_coefficient * (every.exp() * every).sum(-1)
            if a.kl_in == "loss":
                losses = losses + a.kl_coefficient * (new - old[i]).exp() * (
                    (before[i] - new).exp() - (before[i] - new) - 1
                )
            # LUSPO sums over the tokens.
            is_mean = a.loss_aggregation == "trajectory" and a.loss != "luspo"
            loss = loss + losses.sum() / (len(raw[i]) if is_mean else 1) / count
        gradients = {"policy": gradients_of(model, loss)}
        if "critic" in models:
            gradients["critic"] = critic_gradients(
                load(models["critic"], update["critic"][0]),
                [(batch[i], raw[i], values[i]) for i in chosen],
                a,
            )
        yield gradients


def critic_gradients(
    critic: Any, lessons: list[tuple[Trajectory, list[float], torch.Tensor]], a: Any
) -> Weights:
    losses = []
    for t, advantages, old in lessons:
        new = values_of(critic, t)
        at = [place for place, bit in enumerate(t.policy_mask) if bit]
        goal = {
            place: float(old[place]) + advantage
            for place, advantage in zip(at, advantages, strict=True)
        }
        # The state after a turn has the value of the next turn's first token.
        for end in t.turn_ends[:-1] if a.truncated == "bootstrapped" else []:
            goal[end + 1] = goal[min(place for place in at if place > end)]
        for place, right in goal.items():
            near = old[place] + (new[place] - old[place]).clamp(
                -a.critic.value_clip, a.critic.value_clip
            )
            losses.append(0.5 * torch.maximum((new[place] - right) ** 2, (near - right) ** 2))
    return gradients_of(critic, torch.stack(losses).mean())


def load(model: Any, weights: Weights) -> Any:
    made = deepcopy(model)
    made.load_state_dict(weights, strict=False)
    return made


def gradients_of(model: Any, loss: torch.Tensor) -> Weights:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
