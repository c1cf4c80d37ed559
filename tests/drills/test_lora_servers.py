"""Tests of LoRA on a real vLLM server: adapter loads, a restart, and training by two ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from transformers import AutoModelForCausalLM

from configs.experiment import Lora
from configs.infrastructure import InfraSettings
from tasks.inference.adapter import Adapter, max_adapter_rank
from tasks.inference.engine import Generation, Sampling
from tasks.inference.event_loop import event_loop, in_event_loop
from tasks.inference.launch_command import command
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.inference.token_guard import authorization
from tasks.provision.local import LocalServer
from tasks.training.lora import adapters, add_lora
from tests.support.small_training import STEPS, train
from tests.support.vllm_servers import log_probabilities, vllm_servers

pytestmark = pytest.mark.slow

LORA = Lora(rank=4, alpha=8)
PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(40 + 9 * i)] for i in range(4)]


@pytest.fixture(scope="module")
def server(policy: str, state_dir: Path) -> Iterator[LocalServer]:
    words = command(
        policy,
        context_length=768,
        max_num_seqs=16,
        dtype="float32",
        gpu_memory_fraction=0.3,
        cpu_cache_gb=1,
        max_lora_rank=max_adapter_rank(LORA),
        max_loras=2,
    )
    with vllm_servers(words, state_dir, "vllm-lora", 1) as started:
        yield started[0]


def model_with_adapter(policy: str, seed: int) -> Any:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    add_lora(model, LORA, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(seed))
    return model


def check(engine: VllmPoolEngine, model: Any) -> None:
    """Assert that the engine computes with the adapter of the model."""

    async def all_at_once() -> list[Generation]:
        return list(
            await asyncio.gather(
                *(engine.generate(prompt, Sampling(1.0, 12, (0,), 1)) for prompt in PROMPTS)
            )
        )

    for prompt, answer in zip(PROMPTS, in_event_loop(all_at_once()), strict=True):
        right = log_probabilities(model, prompt, answer.tokens)
        assert answer.log_probabilities == pytest.approx(right, abs=1e-4)


def post(server: LocalServer, path: str, content: dict[str, str]) -> None:
    requests.post(
        f"{server.url}{path}", json=content, headers=authorization(), timeout=60
    ).raise_for_status()


def test_adapters_replace_each_other_and_reach_a_restarted_server(
    server: LocalServer, policy: str
) -> None:
    with closing(VllmPoolEngine([server.url])) as engine:
        for seed in (1, 2):
            model = model_with_adapter(policy, seed)
            engine.load_adapter(Adapter(adapters(model), LORA))
            check(engine, model)
        models = requests.get(
            f"{server.url}/v1/models", headers=authorization(), timeout=60
        ).json()["data"]
        assert engine.pool.loaded is not None
        assert [each["id"] for each in models] == ["policy", engine.pool.loaded.version]
        # the state after a restart
        post(server, "/v1/unload_lora_adapter", {"lora_name": engine.pool.loaded.version})
        post(server, "/update_weight_version", {"new_version": "default"})
        check(engine, model)
        assert engine.moved > 0


def test_message_in_flight_keeps_its_adapter(server: LocalServer, policy: str) -> None:
    first, second = (model_with_adapter(policy, seed) for seed in (1, 2))
    long = Sampling(1.0, 700, (), 1)

    with closing(VllmPoolEngine([server.url], update_in_flight=True, adapters=2)) as engine:
        engine.load_adapter(Adapter(adapters(first), LORA))
        [replica] = engine.pool.replicas
        before = in_event_loop(replica.server.generated_tokens()) or 0
        running = asyncio.run_coroutine_threadsafe(engine.generate(PROMPTS[0], long), event_loop())
        while (in_event_loop(replica.server.generated_tokens()) or 0) < before + 50:
            assert not running.done()
        with engine.updating():
            engine.load_adapter(Adapter(adapters(second), LORA))
        assert not running.done()
        check(engine, second)
        answer = running.result()
        assert len(answer.tokens) == long.max_tokens
        assert engine.moved == 0
        right = log_probabilities(first, PROMPTS[0], answer.tokens)
        assert answer.log_probabilities == pytest.approx(right, abs=1e-4)


def test_old_adapters_are_unloaded(server: LocalServer, policy: str) -> None:
    model = model_with_adapter(policy, 1)
    with closing(VllmPoolEngine([server.url], update_in_flight=True, adapters=2)) as engine:
        loaded = []
        for _ in range(3):
            engine.load_adapter(Adapter(adapters(model), LORA))
            assert engine.pool.loaded is not None
            loaded.append(engine.pool.loaded)
        assert loaded[2].adapters == (loaded[1].version, loaded[2].version)
        assert [each.folder.exists() for each in loaded if each.folder] == [False, True, True]
        models = requests.get(
            f"{server.url}/v1/models", headers=authorization(), timeout=60
        ).json()["data"]
        assert [each["id"] for each in models] == ["policy", *loaded[2].adapters]


def test_two_ranks_train_an_adapter_with_servers(
    server: LocalServer, policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {
        "rollout.tasks_per_step": 4,
        "policy.lora": LORA.model_dump(),
        "algorithm.importance_correction": "truncated",
        "rollout.max_off_policy_steps": 1,
        "rollout.update_in_flight": True,
    }
    done = train(
        policy, tmp_path, state_dir, InfraSettings(trainer_processes=2), fields, [server.url]
    )
    assert [event.step for event in done] == list(range(1, STEPS + 1))
    for event in done:
        assert event.metrics["rollout/failed"] == 0
        assert event.metrics["sync/probe_gap_largest"] < 1e-3
