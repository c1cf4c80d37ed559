"""What a training step is summed up by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from configs.mixture import member_of, members
from tasks.rollout.trajectory import Outcome, Trajectory, refused_share, staleness
from tasks.training.groups import learnable_groups, zero_variance
from tasks.training.left_out import left_out


def rollout_metrics(
    trajectories: Sequence[Trajectory], horizon: int, seconds: float, step: int, complete_groups: bool = True
) -> dict[str, float]:
    """Metrics of a batch of trajectories. Failed ones are counted and left out of everything else.

    Args:
        trajectories: All of the batch.
        horizon: The turn limit they ran under.
        seconds: Wall time of the collection.
        step: The training step (from 0) that learns from them.
        complete_groups: Whether the method leaves out groups with a failed member.

    Returns:
        rollout/... by name: success, reward, turns, shares in [0, 1] (malformed_share: turns without an action, refused_share:
        turns whose action the world refused, absent where its server does not say; repeated_share: turns
        that act like the one before), staleness in steps, entropy in nats per policy token (the mean of
        minus the log-probabilities as sampled: an unbiased estimate), policy tokens, tokens per second. Of a mixture also episodes,
        success, reward and turns of each world, e.g. rollout/success_textcraft. left_out_share and left_out_turns are the share and the
        mean length in turns of the episodes that are not learned from because infrastructure broke them or a member of their group.
    """
    sound = [t for t in trajectories if t.outcome is not Outcome.FAILED]
    groups = learnable_groups(trajectories, complete_groups)
    metrics = {
        "rollout/groups": float(len(groups.kept)),
        "rollout/groups_left_out": float(groups.left_out),
        **left_out(trajectories, complete_groups).metrics(),
        "rollout/zero_variance_groups": _mean([float(zero_variance(group)) for group in groups.kept]),
        "rollout/episodes_without_turns": float(sum(not t.turns for t in sound)),
        "rollout/horizon": float(horizon),
        "rollout/episodes": float(len(sound)),
        "rollout/failed": float(len(trajectories) - len(sound)),
        "rollout/repeated_attempts": float(sum(t.attempts - 1 for t in trajectories)),
    }
    if not sound:
        return metrics
    turns = [turn for t in sound for turn in t.turns]
    sampled = [x for turn in turns for x in turn.log_probabilities]
    ages = staleness(sound, step)
    metrics |= {
        "rollout/success": _mean([float(t.succeeded) for t in sound]),
        "rollout/reward": _mean([t.reward for t in sound]),
        "rollout/turns": _mean([float(len(t.turns)) for t in sound]),
        "rollout/truncated_share": _mean([float(t.outcome is Outcome.TRUNCATED) for t in sound]),
        "rollout/cut_by_horizon": _mean([float(t.reason == "horizon") for t in sound]),
        "rollout/malformed_share": _mean([float(turn.malformed) for turn in turns]),
        "rollout/refused_share": refused_share(turns),
        "rollout/repeated_share": _mean([float(now.action == before.action) for t in sound for before, now in pairwise(t.turns)]),
        "rollout/entropy": -_mean(sampled),
        "rollout/policy_tokens": float(len(sampled)),
        "rollout/staleness_mean": _mean([float(age) for age in ages]),
        "rollout/staleness_largest": float(max(ages, default=0)),
        "rollout/tokens_per_second": len(sampled) / seconds,
        "rollout/seconds": seconds,
    }
    if math.isnan(metrics["rollout/refused_share"]):
        del metrics["rollout/refused_share"]
    return metrics | metrics_by_world(sound)


def metrics_by_world(sound: Sequence[Trajectory]) -> dict[str, float]:
    """What was won in each world of a mixture; nothing where one world is played."""
    worlds, metrics = members(sound[0].environment), {}
    for world in worlds if len(worlds) > 1 else ():
        its = [t for t in sound if member_of(t.environment, t.task)[0] == world]
        metrics[f"rollout/episodes_{world}"] = float(len(its))
        if its:
            metrics[f"rollout/success_{world}"] = _mean([float(t.succeeded) for t in its])
            metrics[f"rollout/reward_{world}"] = _mean([t.reward for t in its])
            metrics[f"rollout/turns_{world}"] = _mean([float(len(t.turns)) for t in its])
    return metrics


def device_metrics() -> dict[str, float]:
    """The largest memory that was in use on this process's GPU; nothing without one."""
    return {"update/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
