"""Fields of recipes and collections that had another name before: who still writes the old one is told the new one."""

from __future__ import annotations

RENAMED = {
    "policy.message": "policy.action_format",
    "source.message": "source.action_format",
    "rollout.engine_batch": "rollout.max_num_seqs",
    "rollout.in_flight": "rollout.max_concurrent_episodes",
    "rollout.overlap": "rollout.max_off_policy_steps",
}
"""Old dotted name -> new dotted name."""
