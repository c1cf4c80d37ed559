"""Renamed fields of recipes and collections. An old name is rejected with the new name."""

from __future__ import annotations

RENAMED = {
    "algorithm.gae_decay": "algorithm.gae_lambda",
    "algorithm.least_spread": "algorithm.min_reward_range",
    "algorithm.normalise_by": "algorithm.loss_aggregation",
    "algorithm.offline.cloning_weight": "algorithm.cloning_weight",
    "algorithm.offline.explore_every": "algorithm.explore_every",
    "algorithm.offline.explore_groups": "algorithm.explore_groups",
    "algorithm.offline.preference_weight": "algorithm.beta",
    "algorithm.offline.trajectories": "algorithm.trajectories",
    "algorithm.refills": "algorithm.max_resample_rounds",
    "policy.message": "policy.action_format",
    "source.message": "source.action_format",
    "rollout.engine_batch": "rollout.max_num_seqs",
    "rollout.in_flight": "rollout.max_concurrent_episodes",
    "rollout.overlap": "rollout.max_off_policy_steps",
}
"""Old dotted name -> new dotted name."""


REMOVED = {
    "policy.starter.temperature": "is no field any more: training starts from the policy as it was cloned",
}
"""Dotted name -> why it was removed."""

RENAMED_SETTINGS = {"AGENTGYM_ACCELERATE_CONFIG": "AGENTGYM_LAUNCH"}
"""Old environment variable -> new one."""


def renamed(name: str, value: object) -> str:
    """Return a message about a renamed or removed field, e.g. "is called rollout.max_num_seqs now".

    Args:
        name: Dotted name of an unknown field.
        value: Its value. If a mapping, its fields are looked up too.

    Returns:
        The message. Empty if nothing was renamed.
    """
    if name in RENAMED:
        return f"is called {RENAMED[name]} now"
    if name in REMOVED:
        return REMOVED[name]
    parts = [RENAMED[old] for old in RENAMED if isinstance(value, dict) and old.startswith(f"{name}.") and old.rpartition(".")[2] in value]
    return f"is no part any more; its fields are called {', '.join(parts)} now" if parts else ""
