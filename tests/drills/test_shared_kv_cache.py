"""Tests that four trainer ranks share two vLLM servers without overfilling their KV caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from configs.infrastructure import InfraSettings
from tasks.inference.launch_command import command
from tasks.inference.token_guard import authorization
from tasks.inference.vllm_cpu import BLOCK_TOKENS
from tasks.provision.local import LocalServer
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.small_training import STEPS, train
from tests.support.vllm_servers import vllm_servers

pytestmark = pytest.mark.slow

TOKENS, BLOCKS = 512, 48
"""Maximum tokens of a trajectory, and blocks of 32 tokens in each server's cache.

Each cache has room for three such trajectories.
"""


@pytest.fixture(scope="module")
def servers(policy: str, state_dir: Path) -> Iterator[list[LocalServer]]:
    words = command(
        policy,
        context_length=TOKENS,
        max_num_seqs=64,
        dtype="float32",
        gpu_memory_fraction=0.3,
        cpu_cache_gb=1,
    )
    words += ["--num-gpu-blocks-override", str(BLOCKS)]
    with vllm_servers(words, state_dir, "vllm-small", 2) as started:
        yield started


def counters(server: LocalServer) -> dict[str, float]:
    page = requests.get(f"{server.url}/metrics", headers=authorization(), timeout=60).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def expected_hits(folder: Path) -> int:
    """Return the cache hits, in tokens, if no block of an unfinished episode is evicted.

    These are the whole blocks of earlier turns that an episode continued. The engine does not
    compute the last token that it samples.
    """
    found = 0
    for file in (folder / "rollouts").glob("*.parquet"):
        for trajectory in read_trajectories(file):
            length = len(trajectory.prompt)
            for turn in trajectory.turns[:-1]:
                found += (length + len(turn.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
                length += len(turn.tokens) + len(turn.observation_tokens)
    return found


def test_four_ranks_do_not_overfill_the_caches_of_two_servers(
    servers: list[LocalServer], policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {
        "rollout.tasks_per_step": 8,
        "rollout.trajectory_tokens": TOKENS,
        "rollout.max_concurrent_episodes": 32,
    }
    done = train(
        policy,
        tmp_path,
        state_dir,
        InfraSettings(trainer_processes=4),
        fields,
        [server.url for server in servers],
    )
    assert len(done) == STEPS
    assert {event.metrics["rollout/failed"] for event in done} == {0}
    counted = [counters(server) for server in servers]
    assert [each["vllm:num_preemptions_total"] for each in counted] == [0, 0]
    assert (
        sum(each["vllm:prefix_cache_hits_total"] for each in counted) >= expected_hits(tmp_path) > 0
    )
