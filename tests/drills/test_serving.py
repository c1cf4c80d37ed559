"""Tests of a served policy: it records the episodes of a client, and a trainer trains on them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from configs.infrastructure import InfraSettings
from tasks.rollout.trajectory import Outcome
from tasks.training.offline_selection import read_recorded
from tests.support.small_training import train

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Serve a policy, play eight episodes as a client, and return the folder of the recording."""
    folder = tmp_path_factory.mktemp("serving") / "recorded"
    options = [
        "--record",
        str(folder),
        "--port",
        "0",
        "--dtype",
        "float32",
        "--world",
        "textcraft",
        "--rollout.trajectory_tokens",
        "768",
    ]
    command = [
        sys.executable,
        "-c",
        "import sys; from flows.cli import main; sys.exit(main())",
        "serve",
        policy,
        *options,
    ]
    environment = {**os.environ, "AGENTGYM_ENGINE_TOKEN": "of-the-drill"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdout is not None
        base = next(
            found[1]
            for line in serving.stdout
            if (found := re.search(r"OPENAI_BASE_URL=(\S+)", line))
        )
        with httpx.Client(
            base_url=base, headers={"authorization": "Bearer of-the-drill"}, timeout=120
        ) as client:
            for member in range(8):
                messages = [{"role": "user", "content": "Goal: craft acacia planks."}]
                for _ in range(2):
                    answer = client.post(
                        "/chat/completions", json={"messages": messages, "max_tokens": 8}
                    ).json()
                    text = answer["choices"][0]["message"]["content"]
                    messages += [
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": "Nothing happens."},
                    ]
                client.post(f"/episodes/{answer['episode']}/reward", json={"reward": member % 2})
            client.post("/chat/completions", json={"messages": messages[:1], "max_tokens": 8})
        serving.send_signal(signal.SIGTERM)
        assert "8 recorded, 0 failed, 1 without reward" in serving.stdout.read()
    assert serving.returncode == 0
    assert [t.outcome for t in read_recorded(folder)] == [Outcome.FINISHED, Outcome.SUCCESS] * 4
    return folder


@pytest.mark.parametrize("algorithm", ["rloo", "sft"])
def test_served_episodes_train(
    algorithm: str, recorded: Path, policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {
        "policy.dtype": "float32",
        "rollout.tasks_per_step": 2,
        "algorithm.name": algorithm,
        "algorithm.trajectories": str(recorded),
    }
    done = train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=1), fields)
    assert [event.step for event in done] == [1, 2, 3, 4]
    assert all(event.metrics["update/gradient_norm"] > 0 for event in done)
    if algorithm == "rloo":
        assert [event.metrics["rollout/staleness_largest"] for event in done] == [0, 1, 2, 3]
        assert done[0].metrics["update/episodes_out_of_sync"] == 0
        assert done[0].metrics["update/logp_gap_largest"] < 1e-3
