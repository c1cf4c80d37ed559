"""Summary metrics of a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from configs.mixture import member_of, members
from tasks.rollout.trajectory import Outcome, Trajectory, refused_share, staleness
from tasks.training.groups import learnable_groups, zero_variance
from tasks.training.left_out import left_out
from tasks.training.step_time import GPUS, gpu_model


def rollout_metrics(
    trajectories: Sequence[Trajectory],
    horizon: int,
    seconds: float,
    step: int,
    complete_groups: bool = True,
) -> dict[str, float]:
    """Compute the metrics of a batch of trajectories.

    Failed trajectories are counted, and excluded from the means over episodes, turns and tokens.

    Args:
        trajectories: All trajectories of the batch.
        horizon: The turn limit of the batch.
        seconds: Wall time of the collection.
        step: The training step (from 0) that uses the batch.
        complete_groups: Whether the method drops groups with a failed member.

    Returns:
        Metrics named rollout/...:
        success, reward, turns: Means over episodes.
        zero_variance_groups: Share of the groups, in [0, 1]. Absent without a group.
        malformed_share: Share of turns without an action, in [0, 1].
        refused_share: Share of turns whose action the world refused. Absent if the server does not
            report it.
        repeated_share: Share of turns with the same action as the turn before.
        staleness_...: In training steps.
        entropy: Nats per policy token. The mean of minus the sampled log-probabilities, which is an
            unbiased estimate.
        policy_tokens, tokens_per_second: Tokens written by the policy.
        left_out_share, left_out_turns: Share and mean length, in turns, of the episodes that are
            left out because infrastructure broke them or a member of their group.
        success_textcraft, ...: For a mixture, also episodes, success, reward and turns of each
            world.
    """
    finished = [t for t in trajectories if t.outcome is not Outcome.FAILED]
    groups = learnable_groups(trajectories, complete_groups)
    metrics = {
        "rollout/groups": float(len(groups.kept)),
        "rollout/groups_left_out": float(groups.left_out),
        **left_out(trajectories, complete_groups).metrics(),
        "rollout/horizon": float(horizon),
        "rollout/episodes": float(len(finished)),
        "rollout/failed": float(len(trajectories) - len(finished)),
        "rollout/repeated_attempts": float(sum(t.attempts - 1 for t in trajectories)),
    }
    if groups.kept:
        metrics["rollout/zero_variance_groups"] = _mean(
            [float(zero_variance(group)) for group in groups.kept]
        )
    if not finished:
        return metrics
    turns = [turn for t in finished for turn in t.turns]
    sampled = [x for turn in turns for x in turn.log_probabilities]
    ages = staleness(finished, step)
    metrics |= {
        "rollout/success": _mean([float(t.succeeded) for t in finished]),
        "rollout/reward": _mean([t.reward for t in finished]),
        "rollout/turns": _mean([float(len(t.turns)) for t in finished]),
        "rollout/truncated_share": _mean([float(t.outcome is Outcome.TRUNCATED) for t in finished]),
        "rollout/cut_by_horizon": _mean([float(t.reason == "horizon") for t in finished]),
        "rollout/malformed_share": _mean([float(turn.malformed) for turn in turns]),
        "rollout/refused_share": refused_share(turns),
        "rollout/repeated_share": _mean(
            [
                float(now.action == before.action and not now.malformed)
                for t in finished
                for before, now in pairwise(t.turns)
            ]
        ),
        "rollout/entropy": -_mean(sampled),
        "rollout/policy_tokens": float(len(sampled)),
        "rollout/staleness_mean": _mean([float(age) for age in ages]),
        "rollout/staleness_largest": float(max(ages, default=0)),
        "rollout/tokens_per_second": len(sampled) / seconds,
        "rollout/seconds": seconds,
    }
    if math.isnan(metrics["rollout/refused_share"]):
        del metrics["rollout/refused_share"]
    return metrics | metrics_by_world(finished)


def metrics_by_world(finished: Sequence[Trajectory]) -> dict[str, float]:
    """Return the results in each world of a mixture; empty if there is only one world."""
    worlds, metrics = members(finished[0].environment), {}
    for world in worlds if len(worlds) > 1 else ():
        its = [t for t in finished if member_of(t.environment, t.task)[0] == world]
        metrics[f"rollout/episodes_{world}"] = float(len(its))
        if its:
            metrics[f"rollout/success_{world}"] = _mean([float(t.succeeded) for t in its])
            metrics[f"rollout/reward_{world}"] = _mean([t.reward for t in its])
            metrics[f"rollout/turns_{world}"] = _mean([float(len(t.turns)) for t in its])
    return metrics


def device_metrics(operations_per_second: float) -> dict[str, float]:
    """Return the peak memory and the utilisation of this process's GPU; empty without a GPU.

    Args:
        operations_per_second: Floating-point operations per second that the update needed, on this
            rank. Divided by the GPU's peak, it is the model FLOPs utilisation (MFU).
    """
    if not torch.cuda.is_available():
        return {}
    found = {"update/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30}
    if model := gpu_model(torch.cuda.get_device_name()):
        found["update/mfu"] = operations_per_second / GPUS[model].operations
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
