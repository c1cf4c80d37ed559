"""Tests of vLLM with a batch smaller than the number of episodes in flight.

They have their own file because a process can hold only one vLLM engine at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from configs.experiment import Rollout
from tasks.inference.engine import Generation, Sampling
from tasks.inference.engine_factory import local_engine
from tasks.inference.event_loop import in_event_loop
from tests.support.tiny_policy import build_tiny_policy

PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(10 + 9 * i)] for i in range(12)]


def sampled(policy: str, max_num_seqs: int | None) -> tuple[list[Generation], int]:
    """Return the generations, and the maximum number of requests that ran at once."""
    engine: Any = local_engine(
        Rollout(max_concurrent_episodes=12, max_num_seqs=max_num_seqs, trajectory_tokens=512),
        "float32",
        policy,
    )
    running: list[int] = []
    with closing(engine):
        scheduler, step = engine._engine.engine_core.engine_core.scheduler, engine._engine.step

        def watched() -> Any:
            outputs = step()
            running.append(len(scheduler.running))
            return outputs

        async def all_at_once() -> list[Generation]:
            return await asyncio.gather(
                *(
                    engine.generate(prompt, Sampling(1.0, 12, (0,), seed))
                    for seed, prompt in enumerate(PROMPTS)
                )
            )

        engine._engine.step = watched
        return in_event_loop(all_at_once()), max(running)


def test_waiting_episodes_get_the_same_results_for_any_number_of_threads(tmp_path: Path) -> None:
    policy, threads = build_tiny_policy(tmp_path), torch.get_num_threads()
    free, limited = sampled(policy, None), sampled(policy, 4)
    torch.set_num_threads(4)
    try:
        assert sampled(policy, 3) == (free[0], 3)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    assert limited == (free[0], 4)
    assert free[1] == 12
