"""Tests of real vLLM servers whose weights are updated while they generate messages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests
import torch
from transformers import AutoModelForCausalLM

from configs.infrastructure import InfraSettings
from tasks.inference.engine import EngineBusyError, EngineError, Generation, Sampling
from tasks.inference.event_loop import event_loop, in_event_loop
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.inference.token_guard import authorization
from tasks.inference.weight_transfer import WeightTransfer
from tasks.provision.local import LocalServer
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.lora import computed_weights
from tasks.training.trainer_client import TrainerFailedError
from tests.support.small_training import STEPS, train
from tests.support.stored_transfer import server_command, stored_group
from tests.support.vllm_servers import log_probabilities, vllm_servers

pytestmark = pytest.mark.slow

PROMPT = [5 + 3 * k % 90 for k in range(40)]
LONG = Sampling(temperature=1.0, max_tokens=800, stop_tokens=(), seed=1)
EXACT = 1e-4
"""Largest difference of log-probabilities in float32 between engine and trainer, in nats."""

Model = Any


@pytest.fixture(scope="module")
def server(policy: str, state_dir: Path) -> Iterator[LocalServer]:
    words = server_command(policy, context_length=1024, max_num_seqs=16)
    with vllm_servers(words, state_dir, "vllm-in-flight", 1) as started:
        yield started[0]


@pytest.fixture
def engine(server: LocalServer, policy: str) -> Iterator[VllmPoolEngine]:
    """Yield an engine with the weights of step 1."""
    with closing(VllmPoolEngine([server.url], update_in_flight=True)) as made:
        update(made, model_of(policy), 1)
        yield made


def model_of(policy: str | Path, noise: float = 0.0) -> Model:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return model


def update(engine: VllmPoolEngine, model: Model, step: int) -> None:
    with engine.updating():
        engine.load(computed_weights(model))
        engine.policy_version = step


def message(engine: VllmPoolEngine, during: Callable[[], object] = lambda: None) -> Generation:
    """Generate a long message, and call `during` when a part of it has been generated."""
    [replica] = engine.pool.replicas
    before = in_event_loop(replica.server.generated_tokens()) or 0
    running = asyncio.run_coroutine_threadsafe(engine.generate(PROMPT, LONG), event_loop())
    while (in_event_loop(replica.server.generated_tokens()) or 0) < before + 100:
        assert not running.done()
    during()
    return running.result()


def length_under(model: Model, prompt: list[int], answer: Generation) -> int:
    """Return the number of leading tokens whose log-probabilities are the model's."""
    right = log_probabilities(model, prompt, answer.tokens)
    return next(
        (
            i
            for i, (a, b) in enumerate(zip(answer.log_probabilities, right, strict=True))
            if abs(a - b) > EXACT
        ),
        len(right),
    )


def check_follows(model: Model, prompt: list[int], answer: Generation, first: int) -> None:
    """Assert that all tokens from `first` have the model's log-probabilities."""
    right = log_probabilities(model, prompt, answer.tokens)
    assert answer.log_probabilities[first:] == pytest.approx(right[first:], abs=EXACT)


@pytest.mark.parametrize("way", ["folder", "transfer"])
def test_message_continues_with_the_new_weights(way: str, server: LocalServer, policy: str) -> None:
    transfer = WeightTransfer(60, stored_group) if way == "transfer" else None
    old, new = model_of(policy), model_of(policy, 0.1)
    with closing(VllmPoolEngine([server.url], transfer=transfer, update_in_flight=True)) as engine:
        update(engine, old, 1)
        answer = message(engine, lambda: update(engine, new, 2))
        assert engine.moved == 0
        assert len(answer.tokens) == LONG.max_tokens
        assert answer.policy_version == 1
        changed = length_under(old, PROMPT, answer)
        assert 100 <= changed < LONG.max_tokens
        check_follows(new, PROMPT, answer, changed)
        later = message(engine)
        assert later.policy_version == 2
        check_follows(new, PROMPT, later, 0)


def test_update_with_equal_weights_changes_no_bit_of_a_message(
    engine: VllmPoolEngine, policy: str
) -> None:
    undisturbed = message(engine)
    disturbed = message(engine, lambda: update(engine, model_of(policy), 2))
    assert disturbed.tokens == undisturbed.tokens
    assert disturbed.log_probabilities == undisturbed.log_probabilities


def test_message_is_sampled_again_if_its_first_weights_are_unknown(
    engine: VllmPoolEngine, server: LocalServer, policy: str
) -> None:
    new = model_of(policy, 0.1)

    def update_after_a_restart() -> None:
        requests.post(
            f"{server.url}/update_weight_version",
            json={"new_version": "default"},
            headers=authorization(),
            timeout=60,
        ).raise_for_status()
        update(engine, new, 2)

    answer = message(engine, update_after_a_restart)
    assert engine.moved == 1
    assert answer.policy_version == 2
    check_follows(new, PROMPT, answer, 0)


def test_message_is_sampled_again_after_a_failed_transfer(server: LocalServer, policy: str) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError("the network is gone")

    old = model_of(policy)
    transfer = WeightTransfer(60, stored_group)
    with closing(VllmPoolEngine([server.url], transfer=transfer, update_in_flight=True)) as engine:
        update(engine, old, 1)

        def failing_update() -> None:
            transfer.leave()
            transfer._create_group = fail
            with pytest.raises(EngineError):
                update(engine, model_of(policy, 0.1), 2)

        answer = message(engine, failing_update)
        assert engine.moved == 1
        assert answer.policy_version == 1
        check_follows(old, PROMPT, answer, 0)


def test_frozen_server_does_not_count_as_stuck(server: LocalServer, policy: str) -> None:
    with closing(VllmPoolEngine([server.url], update_in_flight=True)) as engine:
        engine.pool.request_seconds = 3.0
        update(engine, model_of(policy), 1)
        undisturbed = message(engine)

        def long_update() -> None:
            [replica] = engine.pool.replicas
            with engine.updating():
                in_event_loop(replica.server.pause(engine.pool.kept_version))
                time.sleep(6)
                engine.load(computed_weights(model_of(policy)))

        assert message(engine, long_update).tokens == undisturbed.tokens
        assert engine.moved == 0


def test_server_frozen_by_a_killed_process_serves_the_next_one(
    engine: VllmPoolEngine, server: LocalServer
) -> None:
    undisturbed, [replica] = message(engine), engine.pool.replicas
    request = {"model": "policy", "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
    code = "import requests, sys; requests.post(sys.argv[1], json=eval(sys.argv[2]), headers=eval(sys.argv[3]))"
    before = in_event_loop(replica.server.generated_tokens()) or 0
    client = subprocess.Popen(
        [
            *(sys.executable, "-c", code, f"{server.url}/v1/completions"),
            *(repr(request), repr(authorization())),
        ]
    )
    while (in_event_loop(replica.server.generated_tokens()) or 0) < before + 100:
        assert client.poll() is None
    in_event_loop(replica.server.pause(engine.pool.kept_version))
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    with closing(VllmPoolEngine([server.url], update_in_flight=True)) as later:
        assert message(later).tokens == undisturbed.tokens
        cut = (in_event_loop(replica.server.generated_tokens()) or 0) - before
        assert cut < 900 + len(undisturbed.tokens)


def test_load_without_the_option_refuses_requests_in_flight(
    server: LocalServer, policy: str
) -> None:
    with closing(VllmPoolEngine([server.url])) as engine:
        update(engine, model_of(policy), 1)

        def refused() -> None:
            with pytest.raises(EngineBusyError):
                update(engine, model_of(policy, 0.1), 2)

        answer = message(engine, refused)
        assert answer.policy_version == 1
        check_follows(model_of(policy), PROMPT, answer, 0)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks")
def test_two_ranks_train_with_updates_in_flight(
    server: LocalServer, policy: str, tmp_path: Path, state_dir: Path
) -> None:
    fields = {
        "algorithm.importance_correction": "truncated",
        "algorithm.entropy_coefficient": 0.1,  # the weights change without any reward
        "algorithm.learning_rate": 3e-3,
        "checkpoint_every": 1,
        "keep_checkpoints": STEPS,
        # the next batch takes longer than the update, so that messages are in flight at its end
        "rollout.max_concurrent_episodes": 2,
        "rollout.max_off_policy_steps": 1,
        "rollout.tasks_per_step": 2,
        "rollout.trajectory_tokens": 1024,
        "rollout.turn_tokens": 300,
        "rollout.update_in_flight": True,
    }
    done = train(
        policy, tmp_path, state_dir, InfraSettings(trainer_processes=2), fields, [server.url]
    )
    assert [event.step for event in done] == list(range(1, STEPS + 1))
    models = [model_of(policy)] + [
        model_of(tmp_path / "checkpoints" / f"step-{step:06d}") for step in range(1, STEPS + 1)
    ]
    assert all(p.isfinite().all() for model in models for p in model.parameters())
    parts = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    loads = [(part["began"], part["ended"]) for part in parts if part["part"] == "sync"]
    split = 0
    for step, event in enumerate(done):
        assert event.metrics["rollout/failed"] == 0
        assert event.metrics["sync/probe_gap_largest"] < 1e-3
        assert event.metrics["rollout/staleness_largest"] <= 1
        assert 0 <= event.metrics["update/logp_gap_mean"] < 1
        for trajectory in read_trajectories(tmp_path / "rollouts" / f"step-{step + 1:06d}.parquet"):
            context = list(trajectory.prompt)
            for turn in trajectory.turns:
                version, answer = (
                    turn.policy_version,
                    Generation(turn.tokens, turn.log_probabilities),
                )
                changed = length_under(models[version], context, answer)
                if changed < len(turn.tokens):
                    check_follows(models[version + 1], context, answer, changed)
                    began, ended = loads[version]
                    assert turn.began < ended
                    assert began < turn.began + turn.generate_seconds
                    split += 1
                context += [*turn.tokens, *turn.observation_tokens]
    assert split > 0


def test_training_on_servers_with_a_smaller_context_than_the_recipe_is_refused(
    policy: str, tmp_path: Path, state_dir: Path, server: LocalServer
) -> None:
    fields = {"rollout.trajectory_tokens": 2048}
    with pytest.raises(TrainerFailedError, match=r"rollout\.trajectory_tokens"):
        train(policy, tmp_path, state_dir, InfraSettings(trainer_processes=1), fields, [server.url])
