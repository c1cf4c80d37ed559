"""Tests of two real vLLM servers as one engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pytest
import requests
import torch
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo

from configs.infrastructure import InfraSettings
from tasks.inference import pool_engine, weight_transfer
from tasks.inference.engine import EngineError, Generation, Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.inference.token_guard import REFUSALS, VARIABLE, authorization
from tasks.inference.weight_stream import WeightShape, WeightStream
from tasks.inference.weight_transfer import WeightTransfer, worker_payload
from tasks.provision.local import LocalServer
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.training.lora import computed_weights
from tests.support.small_training import train
from tests.support.stored_transfer import server_command, stored_group
from tests.support.vllm_servers import log_probabilities, vllm_servers

pytestmark = pytest.mark.slow

PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(40 + 9 * i)] for i in range(8)]


class Session:
    """A stand-in for an episode, which identifies its session."""


@pytest.fixture(scope="module")
def servers(policy: str, state_dir: Path) -> Iterator[list[LocalServer]]:
    words = server_command(policy, context_length=768, max_num_seqs=32)
    with vllm_servers(words, state_dir, "vllm", 2) as started:
        yield started


@pytest.fixture
def engine(servers: list[LocalServer]) -> Iterator[VllmPoolEngine]:
    made = VllmPoolEngine([server.url for server in servers])
    yield made
    made.close()


def sampling(seed: int, tokens: int = 12, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=tokens, stop_tokens=(0,), seed=seed)


def model_of(policy: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()


def generate(engine: VllmPoolEngine, seed: int, temperature: float = 1.0) -> list[Generation]:
    async def all_at_once() -> list[Generation]:
        sessions = [Session() for _ in PROMPTS]
        requests = zip(PROMPTS, sessions, strict=True)
        return list(
            await asyncio.gather(
                *(
                    engine.generate(p, sampling(seed, temperature=temperature), s)
                    for p, s in requests
                )
            )
        )

    return in_event_loop(all_at_once())


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/metrics",
        "/weight_info",
        "/openapi.json",
        "/collective_rpc",
        "/pause",
        "/nowhere",
    ],
)
def test_every_path_requires_the_token_and_refuses_pages(
    path: str, servers: list[LocalServer]
) -> None:
    url, page = f"{servers[0].url}{path}", {"Origin": "http://page.example"}
    preflight = {**page, "Access-Control-Request-Method": "POST"}
    wrong = {"authorization": f"{authorization()['authorization']}x"}
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        for headers, status, code in (
            ({}, 401, "invalid_api_key"),
            (wrong, 401, "invalid_api_key"),
            (page, 403, "browser_refused"),
            (preflight, 403, "browser_refused"),
            ({**page, **authorization()}, 403, "browser_refused"),
        ):
            answer = requests.request(method, url, headers=headers, json={}, timeout=60)
            assert answer.status_code == status
            assert answer.json() == REFUSALS[status]  # without any content of the server
            assert answer.json()["error"]["code"] == code
            assert "access-control-allow-origin" not in answer.headers


def test_wrong_engine_token_names_the_setting(
    servers: list[LocalServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "wrong")
    with pytest.raises(EngineError, match=VARIABLE):
        VllmPoolEngine([servers[0].url], weights_folder=tmp_path)
    assert not any(tmp_path.iterdir())


def test_log_probabilities_match_the_sampling_distribution(
    engine: VllmPoolEngine, policy: str
) -> None:
    model = model_of(policy)
    for temperature in (1.0, 0.7):
        for prompt, answer in zip(PROMPTS, generate(engine, 3, temperature), strict=True):
            assert answer.log_probabilities == pytest.approx(
                log_probabilities(model, prompt, answer.tokens, temperature), abs=1e-4
            )


def test_sampling_does_not_follow_the_generation_config_of_the_model(
    policy: str, tmp_path: Path, state_dir: Path
) -> None:
    shutil.copytree(policy, tmp_path / "greedy")
    (tmp_path / "greedy" / "generation_config.json").write_text('{"top_k": 1, "do_sample": true}')
    words = server_command(str(tmp_path / "greedy"), context_length=512, max_num_seqs=8)
    flag = words.index("--generation-config")
    del words[flag : flag + 2]  # as in a server that was started by hand
    with (
        vllm_servers(words, state_dir, "by-hand", 1) as (server,),
        closing(VllmPoolEngine([server.url])) as engine,
    ):
        answers = generate(engine, 3)
    model = model_of(policy)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.log_probabilities == pytest.approx(
            log_probabilities(model, prompt, answer.tokens), abs=1e-4
        )
    likeliest = [max(log_probabilities(model, p, [t])[0] for t in range(90)) for p in PROMPTS]
    assert any(
        answer.log_probabilities[0] < best - 1e-3
        for answer, best in zip(answers, likeliest, strict=True)
    )


def test_cache_capacities_of_running_servers_add_up(engine: VllmPoolEngine) -> None:
    one, other = (replica.kv_cache_tokens for replica in engine.pool.replicas)
    assert one == other > 10_000
    assert engine.kv_cache_tokens == one + other


def test_server_reports_its_generated_tokens(engine: VllmPoolEngine) -> None:
    def reported_tokens() -> int:
        return sum(
            in_event_loop(replica.server.generated_tokens()) or 0
            for replica in engine.pool.replicas
        )

    before = reported_tokens()
    written = sum(len(answer.tokens) for answer in generate(engine, 3, 1.0))
    assert reported_tokens() - before == written


def test_sessions_are_distributed_and_keep_their_prefix_cache(engine: VllmPoolEngine) -> None:
    async def dialogues() -> list[str]:
        sessions = [Session() for _ in range(6)]
        contexts = [[7 + i, *PROMPTS[4]] for i in range(6)]
        for turn in range(4):
            answers = await asyncio.gather(
                *(
                    engine.generate(c, sampling(turn), s)
                    for c, s in zip(contexts, sessions, strict=True)
                )
            )
            for context, answer in zip(contexts, answers, strict=True):
                context += [*answer.tokens, *PROMPTS[0][:30]]
        assert [len(replica.sessions) for replica in engine.pool.replicas] == [3, 3]
        return [engine.pool._routes[session].server.url for session in sessions]

    in_event_loop(dialogues())
    assert [len(replica.sessions) for replica in engine.pool.replicas] == [
        0,
        0,
    ]  # finished episodes have no server
    assert engine.cached_tokens / engine.prompt_tokens > 0.5


def test_new_weights_reach_all_servers_including_a_restarted_one(
    engine: VllmPoolEngine, servers: list[LocalServer], policy: str
) -> None:
    model = model_of(policy)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
            )
    engine.load(computed_weights(model))
    engine.policy_version = 7
    for prompt, answer in zip(PROMPTS, generate(engine, 4), strict=True):
        assert answer.log_probabilities == pytest.approx(
            log_probabilities(model, prompt, answer.tokens), abs=1e-4
        )
        assert answer.policy_version == 7

    simulate_restart(engine, servers[1], policy)
    for prompt, answer in zip(PROMPTS, generate(engine, 5), strict=True):
        assert answer.log_probabilities == pytest.approx(
            log_probabilities(model, prompt, answer.tokens), abs=1e-4
        )
    assert engine.moved > 0


def simulate_restart(engine: VllmPoolEngine, server: LocalServer, policy: str) -> None:
    """Reset a server to its initial weights and close the connections to it."""
    for replica in engine.pool.replicas:
        in_event_loop(replica.server.close())
    reload = {"method": "reload_weights", "kwargs": {"weights_path": policy}}
    for path, content in (
        ("/collective_rpc", reload),
        ("/update_weight_version", {"new_version": "default"}),
    ):
        requests.post(
            f"{server.url}{path}", json=content, headers=authorization(), timeout=60
        ).raise_for_status()


def test_weight_transfer_reaches_restarted_and_interrupted_servers(
    servers: list[LocalServer], policy: str
) -> None:
    model, transfer = model_of(policy), WeightTransfer(60, stored_group)
    with closing(VllmPoolEngine([server.url for server in servers], transfer=transfer)) as engine:
        for update in range(4):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.1 * torch.randn(
                        parameter.shape,
                        generator=torch.Generator().manual_seed(update + parameter.numel()),
                    )
            engine.load(computed_weights(model))
            for prompt, answer in zip(PROMPTS, generate(engine, 4), strict=True):
                assert answer.log_probabilities == pytest.approx(
                    log_probabilities(model, prompt, answer.tokens), abs=1e-4
                )
            if update == 1:
                simulate_restart(engine, servers[1], policy)
                for prompt, answer in zip(PROMPTS, generate(engine, 5), strict=True):
                    assert answer.log_probabilities == pytest.approx(
                        log_probabilities(model, prompt, answer.tokens), abs=1e-4
                    )
                assert [bool(replica.down) for replica in engine.pool.replicas] == [False, True]
            if update == 2:
                requests.post(
                    f"{servers[0].url}/start_weight_update", headers=authorization(), timeout=60
                ).raise_for_status()
        assert not any(replica.down for replica in engine.pool.replicas)


@pytest.mark.parametrize("way", ["folder", "transfer"])
def test_new_weights_are_gathered_one_at_a_time(
    way: str, servers: list[LocalServer], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, alive, most = model_of(policy), 0, 0

    def dropped() -> None:
        nonlocal alive
        alive -= 1

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal alive, most
        for name, parameter in model.named_parameters():
            gathered_weight = parameter.detach().clone()
            finalize(gathered_weight, dropped)
            alive += 1
            most = max(most, alive)
            yield name, gathered_weight
            del gathered_weight

    monkeypatch.setattr(pool_engine, "PART_BYTES", 1)
    transfer = WeightTransfer(60, stored_group) if way == "transfer" else None
    with closing(VllmPoolEngine([server.url for server in servers], transfer=transfer)) as engine:
        engine.load(WeightStream(computed_weights(model).shapes, gathered()))
        for prompt, answer in zip(PROMPTS, generate(engine, 4), strict=True):
            assert answer.log_probabilities == pytest.approx(
                log_probabilities(model, prompt, answer.tokens), abs=1e-4
            )
    assert most <= 2
    assert alive == 0


def test_weights_that_do_not_fit_into_the_folder_are_refused(engine: VllmPoolEngine) -> None:
    with pytest.raises(EngineError, match="SHM_SIZE"):
        engine.load(WeightStream([WeightShape("weight", torch.float32, (10**15,))], ()))


def test_servers_that_refuse_an_nccl_group_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Servers:
        def init_weight_transfer_engine(self, _: Any) -> None:
            raise requests.HTTPError("weight transfer is not configured")

    entered = []
    library = SimpleNamespace(ncclGetUniqueId=lambda: SimpleNamespace(internal=bytes(128)))
    monkeypatch.setattr(weight_transfer, "NCCLLibrary", lambda: library)
    monkeypatch.setattr(weight_transfer, "NCCLTrainerWeightTransferEngine", lambda **_: None)
    monkeypatch.setattr(weight_transfer, "uid_init_process_group", lambda *_: entered.append(1))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    with pytest.raises(requests.HTTPError):
        weight_transfer.nccl_group(2, Servers(), None)  # type: ignore[arg-type]
    assert not entered


def test_nccl_group_is_announced_by_its_id_and_opens_no_store() -> None:
    unique_id = bytes(range(128))
    received = NCCLWeightTransferInitInfo(**worker_payload(unique_id, members=3))
    assert received.nccl_unique_id_bytes == unique_id
    assert (received.master_address, received.master_port) == (None, None)
    assert (received.rank_offset, received.world_size, received.packed) == (1, 3, True)


def test_interrupted_load_leaves_no_server_paused(
    engine: VllmPoolEngine, servers: list[LocalServer], policy: str
) -> None:
    model = model_of(policy)
    engine.load(computed_weights(model))
    assert engine.pool.loaded is not None
    assert engine.pool.loaded.folder is not None
    folder, version = engine.pool.loaded.folder, engine.pool.loaded.version

    async def cut_short() -> None:
        for seconds in (0.001, 0.004, 0.01, 0.02, 0.04):
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    engine.pool.replicas[0].server.read_weights(folder, version), seconds
                )

    in_event_loop(cut_short())
    engine.load(computed_weights(model))
    answer = generate(engine, 6)[0]
    requests.post(
        f"{servers[0].url}/pause?mode=wait", json={}, headers=authorization(), timeout=60
    ).raise_for_status()  # as if a killed process had paused the server
    with closing(VllmPoolEngine([server.url for server in servers], request_seconds=20)) as later:
        assert generate(later, 6)[0].tokens == answer.tokens


def test_two_ranks_share_the_servers_and_one_loads_the_weights(
    servers: list[LocalServer], policy: str, tmp_path: Path, state_dir: Path
) -> None:
    urls = [server.url for server in servers]
    done = train(
        policy,
        tmp_path,
        state_dir,
        InfraSettings(trainer_processes=2),
        {"rollout.tasks_per_step": 4},
        urls,
    )
    assert [event.step for event in done] == [1, 2, 3, 4]
    for step, event in enumerate(done):
        # The event exists only if each rank has verified that the servers compute with its weights
        # of this step.
        trajectories = read_trajectories(tmp_path / "rollouts" / f"step-{step + 1:06d}.parquet")
        assert len(trajectories) == 16
        assert {turn.policy_version for t in trajectories for turn in t.turns} == {step}
        assert event.metrics["rollout/failed"] == 0
        assert event.metrics["sync/probe_gap_largest"] < 1e-3


def test_follower_skips_servers_with_other_weights(
    engine: VllmPoolEngine, servers: list[LocalServer], policy: str
) -> None:
    model = model_of(policy)
    engine.load(computed_weights(model))
    assert engine.pool.loaded is not None
    with closing(VllmPoolEngine([server.url for server in servers])) as other:
        simulate_restart(other, servers[0], policy)
        other.adopt_weights(engine.pool.loaded)
        assert [bool(replica.down) for replica in other.pool.replicas] == [True, False]
        for prompt, answer in zip(PROMPTS, generate(other, 4), strict=True):
            assert answer.log_probabilities == pytest.approx(
                log_probabilities(model, prompt, answer.tokens), abs=1e-4
            )


def test_weights_of_another_run_are_detected(
    engine: VllmPoolEngine, servers: list[LocalServer], policy: str
) -> None:
    model = model_of(policy)
    engine.load(computed_weights(model))
    engine.check_weights()
    with closing(VllmPoolEngine([servers[1].url])) as other:
        other.load(computed_weights(model))
    with pytest.raises(EngineError) as noticed:
        engine.check_weights()
    assert servers[1].url in str(noticed.value)


def test_rejected_request_raises_an_engine_error(engine: VllmPoolEngine) -> None:
    with pytest.raises(EngineError) as rejected:
        in_event_loop(engine.generate([5] * 800, sampling(1)))
    assert rejected.value.status == 400


def test_url_without_a_server_is_named() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        VllmPoolEngine(["http://127.0.0.1:9"])


def test_episodes_of_a_dead_server_continue_on_another(
    engine: VllmPoolEngine, servers: list[LocalServer], policy: str
) -> None:
    model = model_of(policy)
    engine.load(computed_weights(model))

    async def kill_one_server() -> list[Generation]:
        sessions = [Session() for _ in range(16)]
        running = [
            asyncio.create_task(engine.generate(PROMPTS[i % 8], sampling(i, tokens=200), s))
            for i, s in enumerate(sessions)
        ]
        while not all(replica.requests for replica in engine.pool.replicas):  # noqa: ASYNC110
            await asyncio.sleep(0)
        os.killpg(servers[0].pid, signal.SIGKILL)
        return list(await asyncio.gather(*running))

    for i, answer in enumerate(in_event_loop(kill_one_server())):
        assert answer.log_probabilities == pytest.approx(
            log_probabilities(model, PROMPTS[i % 8], answer.tokens), abs=1e-4
        )
    assert engine.moved > 0
    assert engine.pool.replicas[0].down
