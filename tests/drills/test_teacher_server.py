"""Tests of distillation from a teacher on a real vLLM server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from configs.recipe import RecipeError, load_recipe
from tasks.inference.engine import EngineError
from tasks.inference.launch_command import command
from tasks.inference.teacher_server import TeacherServer
from tasks.inference.token_guard import GUARD, share_token
from tasks.training.row_tensors import pad_trajectories
from tests.support.listener import listener
from tests.support.recorded import recorded_trajectories, small_experiment, trainer_of
from tests.support.tiny_policy import noisy_copy
from tests.support.vllm_servers import vllm_servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def teacher(policy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return noisy_copy(policy, tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def url(teacher: str, state_dir: Path) -> Iterator[str]:
    words = command(
        teacher,
        context_length=1025,
        max_num_seqs=16,
        dtype="float32",
        gpu_memory_fraction=0.3,
        cpu_cache_gb=1,
    )
    guard = words.index("--middleware")
    assert words[guard + 1] == GUARD
    del words[guard : guard + 2]  # a teacher is served without a token
    with vllm_servers(words, state_dir, "teacher", 1) as started:
        yield started[0].url


def test_served_teacher_gives_the_same_advantages_as_a_local_one(
    url: str, teacher: str, policy: str, tmp_path: Path
) -> None:
    batch = recorded_trajectories(policy, 0, rows=True)
    found = []
    for where in (teacher, f"{url}/v1"):
        experiment = small_experiment(name="distillation", teacher=where, micro_batches=3)
        trainer = trainer_of(experiment, policy, tmp_path)
        samples = trainer.samples_of(batch, 0)
        found.append(
            (
                torch.cat([sample.advantages for sample in samples]),
                trainer.batch_metrics["update/teacher_kl"],
            )
        )
    (local, kl), (served, served_kl) = found
    assert trainer.ref_model is None
    assert trainer.reference.log_probabilities(pad_trajectories([], 0)).shape == (1, 1)
    assert float(local.abs().max()) > 0.01
    assert torch.allclose(local, served, atol=1e-4)
    assert served_kl == pytest.approx(kl, abs=1e-4)


def test_unusable_servers_are_refused(url: str, policy: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    TeacherServer(url, tokenizer, 1024, 60.0)
    with pytest.raises(EngineError, match="trajectory_tokens"):
        TeacherServer(url, tokenizer, 1025, 60.0)
    tokenizer.add_tokens(["another"])
    with pytest.raises(EngineError, match=r"algorithm\.teacher"):
        TeacherServer(url, tokenizer, 1024, 60.0)
    with pytest.raises(EngineError, match=r"algorithm\.teacher"):
        TeacherServer("http://127.0.0.1:9", tokenizer, 1024, 60.0)


def test_teacher_gets_no_token_of_the_run(policy: str) -> None:
    share_token()
    with listener(status=401) as stranger, pytest.raises(EngineError, match=r"algorithm\.teacher"):
        TeacherServer(stranger.origin, AutoTokenizer.from_pretrained(policy), 1024, 60.0)
    assert len(stranger.headers) == 1
    assert "authorization" not in stranger.headers[0]


def test_served_teacher_requires_temperature_one() -> None:
    fields = {"algorithm.name": "distillation", "algorithm.teacher": "http://127.0.0.1:9"}
    load_recipe("textcraft", fields)
    with pytest.raises(RecipeError, match=r"rollout\.temperature"):
        load_recipe("textcraft", {**fields, "rollout.temperature": 0.7})
