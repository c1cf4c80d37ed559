"""Tests of the vLLM and transformers engines with a tiny policy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse

from configs.experiment import Lora
from flows.model_check import CPU_HEAD_SIZES
from tasks.inference import vllm_client
from tasks.inference.adapter import Adapter
from tasks.inference.engine import (
    Engine,
    EngineAsleepError,
    EngineBusyError,
    EngineError,
    Generation,
    Sampling,
)
from tasks.inference.event_loop import in_event_loop
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.inference.token_guard import VARIABLE
from tasks.inference.transformers_engine import TransformersEngine, sample
from tasks.inference.vllm_cpu import invariant_linear
from tasks.inference.vllm_engine import VllmEngine
from tasks.inference.weight_stream import WeightStream
from tasks.inference.weight_sync_check import WeightSyncError, check_weight_sync
from tests.support import completion_server
from tests.support.listener import listener, use_proxy
from tests.support.served_endpoint import serving
from tests.support.vllm_servers import log_probabilities

PROMPTS = [[5 + (7 * i + 3 * k) % 90 for k in range(10 + 9 * i)] for i in range(12)]


@pytest.fixture(scope="module")
def vllm_engine(policy: str) -> Iterator[VllmEngine]:
    engine = VllmEngine(policy, context_length=512, max_num_seqs=32, dtype="float32")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def transformers_engine(policy: str) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(policy, context_length=512, max_num_seqs=32, dtype="float32")
    yield engine
    engine.close()


@pytest.fixture(params=["vllm", "transformers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.getfixturevalue(f"{request.param}_engine")
    return made


@pytest.fixture
def trainer_model(policy: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sampling(seed: int = 1, tokens: int = 12, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=tokens, stop_tokens=(0,), seed=seed)


def generate(
    engine: Engine, requests: Sequence[tuple[Sequence[int], Sampling]]
) -> list[Generation]:
    async def all_at_once() -> list[Generation]:
        return list(await asyncio.gather(*(engine.generate(*request) for request in requests)))

    return in_event_loop(all_at_once())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_match_the_sampling_distribution(
    engine: Engine, trainer_model: Any, temperature: float
) -> None:
    answers = generate(
        engine, [(prompt, sampling(i, temperature=temperature)) for i, prompt in enumerate(PROMPTS)]
    )
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.log_probabilities == pytest.approx(
            log_probabilities(trainer_model, prompt, answer.tokens, temperature), abs=1e-4
        )


def test_each_row_is_sampled_from_the_softmax_at_its_temperature() -> None:
    n, generator = 20_000, torch.Generator().manual_seed(0)
    logits = torch.tensor([1.0, -2.0, 0.5, -torch.inf, 0.0])
    temperatures = torch.tensor([0.7, 2.0, 0.0])
    expected = torch.stack(
        [(logits / 0.7).softmax(-1), (logits / 2.0).softmax(-1), logits.softmax(-1)]
    )
    draws = torch.rand(n * 3, dtype=torch.float64, generator=generator)
    tokens, log_probabilities = sample(logits.expand(n * 3, 5), temperatures.repeat(n), draws)
    assert torch.allclose(log_probabilities.exp(), expected.repeat(n, 1)[range(n * 3), tokens])
    counts = torch.stack([tokens[row::3].bincount(minlength=5) for row in range(3)])
    assert counts[2, 0] == n  # at temperature 0 always the most likely token
    spread = (expected[:2] * (1 - expected[:2]) / n).sqrt()
    assert ((counts[:2] / n - expected[:2]).abs() <= 4 * spread).all()
    assert counts[:, 3].sum() == 0


def test_requests_that_arrive_together_share_a_batch(
    transformers_engine: TransformersEngine,
) -> None:
    async def generate_after(turns: int) -> Generation:
        for _ in range(turns):  # turns of the event loop
            await asyncio.sleep(0)
        return await transformers_engine.generate(PROMPTS[0], sampling(seed=turns))

    async def generate_all() -> list[Generation]:
        return list(await asyncio.gather(*(generate_after(turns) for turns in range(0, 32, 4))))

    before = transformers_engine.progress
    longest = max(len(each.tokens) for each in in_event_loop(generate_all()))
    assert transformers_engine.progress - before == longest


def test_vllm_reports_its_cache_capacity(vllm_engine: VllmEngine, trainer_model: Any) -> None:
    config = trainer_model.config
    bytes_per_token = (
        2
        * config.num_hidden_layers
        * config.num_key_value_heads
        * (config.hidden_size // config.num_attention_heads)
        * 4
    )
    assert vllm_engine.kv_cache_tokens == pytest.approx(2**30 / bytes_per_token, rel=0.05)


def test_engines_agree_at_temperature_zero(
    vllm_engine: Engine, transformers_engine: Engine
) -> None:
    requests = [(prompt, sampling(temperature=0.0)) for prompt in PROMPTS]
    from_vllm, from_transformers = (
        generate(vllm_engine, requests),
        generate(transformers_engine, requests),
    )
    assert [answer.tokens for answer in from_vllm] == [
        answer.tokens for answer in from_transformers
    ]


def test_generation_stops_at_stop_token_or_budget(engine: Engine) -> None:
    free = generate(engine, [(PROMPTS[0], sampling(3, tokens=20))])[0]
    assert len(free.tokens) == len(free.log_probabilities) <= 20
    stop = free.tokens[2]
    stopped = generate(engine, [(PROMPTS[0], Sampling(1.0, 20, (stop,), 3))])[0]
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_progress_grows_with_every_token(engine: Engine) -> None:
    before = engine.progress
    [answer] = generate(engine, [(PROMPTS[0], sampling(3, tokens=20))])
    assert before is not None
    assert engine.progress is not None
    assert engine.progress - before >= len(answer.tokens)


def test_sampling_is_determined_by_the_seed(engine: Engine) -> None:
    first, again, other = (
        generate(engine, [(PROMPTS[3], sampling(seed, tokens=16))])[0].tokens for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


def rows_are_invariant() -> bool:
    """Return whether `invariant_linear` is row-invariant on this processor with one thread.

    Only a few shapes are tested.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return all(
            _is_invariant(inner, outer)
            for inner, outer in ((64, 64), (128, 384), (384, 128), (128, 1024))
        )
    finally:
        torch.set_num_threads(threads)


def _is_invariant(inner: int, outer: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(129, inner, generator=generator)
    weight = torch.randn(outer, inner, generator=generator)
    product = invariant_linear(x, weight)
    return all(
        torch.equal(invariant_linear(x[:rows], weight), product[:rows])
        for rows in (1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 100)
    )


@pytest.mark.processor
def test_vllm_results_do_not_depend_on_other_requests(vllm_engine: VllmEngine) -> None:
    if not rows_are_invariant():
        pytest.skip(
            "the matrix product of this processor is not row-invariant, so results may differ "
            "between runs"
        )

    async def dialogues(pause_seed: int) -> list[list[Generation]]:
        pauses = random.Random(pause_seed)

        async def dialogue(i: int) -> list[Generation]:
            tokens, answers = list(PROMPTS[i]), []
            for turn in range(5):
                await asyncio.sleep(pauses.random() * 0.02)
                answers.append(
                    await vllm_engine.generate(tokens, sampling(100 * i + turn, tokens=8))
                )
                tokens += [*answers[-1].tokens, *PROMPTS[(i + turn) % len(PROMPTS)][:7]]
            return answers

        return list(await asyncio.gather(*(dialogue(i) for i in range(len(PROMPTS)))))

    first = in_event_loop(dialogues(0))
    assert all(in_event_loop(dialogues(seed)) == first for seed in (1, 2, 3))


def test_a_cancelled_request_leaves_the_engine_usable(engine: Engine) -> None:
    async def cancel_one() -> list[int]:
        cancelled = asyncio.create_task(engine.generate(PROMPTS[1], sampling(1, tokens=200)))
        await asyncio.sleep(0)
        cancelled.cancel()
        return (await engine.generate(PROMPTS[0], sampling(5))).tokens

    assert in_event_loop(cancel_one()) == generate(engine, [(PROMPTS[0], sampling(5))])[0].tokens


def test_the_event_loop_runs_between_the_steps_of_an_engine(engine: Engine) -> None:
    async def watch() -> set[int | None]:
        answer = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(1.0, 50, (), 3)))
        seen = set()
        while not answer.done():
            seen.add(engine.progress)
            assert not torch.is_inference_mode_enabled()
            await asyncio.sleep(0)
        return seen

    assert len(in_event_loop(watch())) > 40


def test_request_cancelled_midway_is_not_completed(engine: Engine) -> None:
    async def cancel_one() -> list[int]:
        before = engine.progress or 0
        kept = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(1.0, 50, (), 5)))
        cancelled = asyncio.create_task(engine.generate(PROMPTS[1], Sampling(1.0, 400, (), 1)))
        while (engine.progress or 0) < before + 3:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0)
        cancelled.cancel()
        tokens = (await kept).tokens
        await engine.generate(PROMPTS[0], sampling(5))
        return [len(tokens), (engine.progress or 0) - before]

    tokens, steps = in_event_loop(cancel_one())
    assert tokens == 50
    assert steps < 100


def test_failed_step_leaves_no_request_and_no_prefix_behind(
    vllm_engine: VllmEngine, trainer_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = vllm_engine._engine.engine_core.engine_core
    prompt = [3 + (11 * k) % 90 for k in range(200)]  # several blocks of the KV cache

    def fails(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(core.model_executor, "execute_model", fails)
    with pytest.raises(EngineError, match="out of memory"):
        generate(vllm_engine, [(prompt, sampling(1))])
    assert core.scheduler.get_num_unfinished_requests() == 0
    (answer,) = generate(vllm_engine, [(prompt, sampling(1))])
    assert answer.log_probabilities == pytest.approx(
        log_probabilities(trainer_model, prompt, answer.tokens), abs=1e-4
    )
    vllm_engine.load(trainer_model.named_parameters())


@pytest.mark.parametrize(
    ("fault", "names_field"),
    [(torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("broken"), False)],
)
def test_error_for_want_of_memory_names_the_field_that_saves_memory(
    fault: RuntimeError,
    names_field: bool,
    transformers_engine: TransformersEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(transformers_engine, "_continue", fails)
    with pytest.raises(EngineError) as failed:
        generate(transformers_engine, [(PROMPTS[0], sampling())])
    assert ("rollout.max_num_seqs" in str(failed.value)) == names_field


@pytest.mark.parametrize(
    ("fault", "names_fields"),
    [("No available memory for the cache blocks.", True), ("unknown architecture", False)],
)
def test_vllm_that_cannot_start_for_want_of_memory_names_the_fields_that_save_memory(
    fault: str, names_fields: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> None:
        raise ValueError(fault)

    monkeypatch.setattr("vllm.LLMEngine.from_engine_args", fails)
    with pytest.raises(EngineError) as failed:
        VllmEngine(policy, context_length=64, max_num_seqs=1, dtype="float32")
    fields = ("rollout.trajectory_tokens", "rollout.max_num_seqs")
    settings = ("AGENTGYM_ENGINE_CPU_CACHE_GB", "AGENTGYM_ENGINE_MEMORY_FRACTION")
    for name in (*fields, *settings):
        assert (name in str(failed.value)) == names_fields


def test_requests_to_servers_name_every_parameter_that_a_generation_config_can_set(
    tmp_path: Path,
) -> None:
    bodies = list[dict[str, Any]]()

    async def complete(request: Request) -> JSONResponse:
        bodies.append(await request.json())
        return await completion_server.complete(request)

    with (
        serving(completion_server.application(complete)) as port,
        closing(VllmPoolEngine([f"http://127.0.0.1:{port}"], weights_folder=tmp_path)) as pool,
    ):
        generate(pool, [([9], sampling(temperature=0.7))])
    neutral = {
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    chosen = {"temperature": 0.7, "max_tokens": 12}
    assert {name: bodies[-1].get(name) for name in neutral | chosen} == neutral | chosen


@pytest.mark.parametrize("adapters", [False, True])
def test_error_of_servers_that_read_no_folder_says_what_servers_elsewhere_need(
    adapters: bool, tmp_path: Path
) -> None:
    with (
        serving(completion_server.application()) as port,  # it has no route that loads weights
        closing(VllmPoolEngine([f"http://127.0.0.1:{port}"], weights_folder=tmp_path)) as pool,
    ):
        if adapters:
            load = partial(pool.load_adapter, Adapter({}, Lora(rank=1)))
        else:
            load = partial(pool.load, WeightStream([], iter(())))
        with pytest.raises(EngineError) as refused:
            load()
    named = [name for name in ("AGENTGYM_ENGINE_WEIGHTS", "Ray") if name in str(refused.value)]
    assert named == (["Ray"] if adapters else ["AGENTGYM_ENGINE_WEIGHTS"])


def test_server_that_generates_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(request: Request) -> JSONResponse:
        await asyncio.sleep(3)
        return await completion_server.complete(request)

    monkeypatch.setattr(vllm_client, "LOAD_S", 0.5)
    app = completion_server.application(hang)
    with serving(app) as port, pytest.raises(EngineError):
        VllmPoolEngine([f"http://127.0.0.1:{port}"], weights_folder=tmp_path)


def test_weight_transfer_sends_the_token_to_the_server_and_not_to_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tasks.inference.weight_transfer import WeightTransfer  # imports vLLM, so only on demand

    def group(_: int, servers: Any, __: object) -> Any:
        servers.init_weight_transfer_engine({"rank_offset": 1})
        return SimpleNamespace(send_weights=servers.start_weight_update)

    monkeypatch.setenv(VARIABLE, "engine-secret")
    with listener() as proxy, listener() as server:
        use_proxy(proxy, monkeypatch)
        transfer = WeightTransfer(30.0, group)
        transfer.send(WeightStream([], iter(())), {server.origin: 1}, new_group=False)
    assert [headers.get("authorization") for headers in server.headers] == [
        "Bearer engine-secret"
    ] * 2
    assert proxy.headers == []


def test_too_long_prompt_is_an_engine_error(engine: Engine) -> None:
    with pytest.raises(EngineError):
        generate(engine, [([5] * 600, sampling())])


def test_weight_sync_check_detects_missing_weights(engine: Engine, trainer_model: Any) -> None:
    def trainer_scores(
        prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        return [
            log_probabilities(trainer_model, prompt, tokens)
            for prompt, tokens in zip(prompts, continuations, strict=True)
        ]

    original = {
        name: parameter.detach().clone() for name, parameter in trainer_model.named_parameters()
    }
    with torch.no_grad():
        for parameter in trainer_model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
            )
    with pytest.raises(WeightSyncError):
        check_weight_sync(engine, PROMPTS[:4], trainer_scores, sampling(2), "float32")
    engine.load(trainer_model.named_parameters())
    assert (
        check_weight_sync(engine, PROMPTS[:4], trainer_scores, sampling(2), "float32").mean < 1e-4
    )
    engine.load(original.items())


def test_weights_under_names_that_vllm_does_not_know_are_an_engine_error(
    vllm_engine: VllmEngine, trainer_model: Any
) -> None:
    with pytest.raises(EngineError):
        vllm_engine.load([("model.layers.0.mlp.gate.weight", torch.zeros(2, 2))])
    vllm_engine.load(trainer_model.named_parameters())


def test_weights_cannot_be_replaced_during_a_request(
    vllm_engine: VllmEngine, trainer_model: Any
) -> None:
    async def load_in_flight() -> None:
        running = asyncio.create_task(vllm_engine.generate(PROMPTS[0], sampling(1, tokens=50)))
        await asyncio.sleep(0)
        try:
            vllm_engine.load(trainer_model.named_parameters())
        finally:
            await running

    with pytest.raises(EngineBusyError):
        in_event_loop(load_in_flight())


def test_sleeping_engine_wakes_on_load_and_cannot_sleep_during_a_request(
    vllm_engine: VllmEngine, trainer_model: Any
) -> None:
    async def sleep_in_flight() -> Generation:
        running = asyncio.create_task(vllm_engine.generate(PROMPTS[0], sampling(1)))
        await asyncio.sleep(0)
        with pytest.raises(EngineBusyError):
            vllm_engine.sleep()
        return await running

    before = in_event_loop(sleep_in_flight())
    vllm_engine.sleep()
    with pytest.raises(EngineAsleepError):
        generate(vllm_engine, [(PROMPTS[0], sampling(1))])
    vllm_engine.load(trainer_model.named_parameters())
    assert generate(vllm_engine, [(PROMPTS[0], sampling(1))])[0].tokens == before.tokens


def test_sleep_mode_is_refused_on_unsupported_devices(policy: str) -> None:
    with pytest.raises(EngineError, match="AGENTGYM_ENGINE_SLEEP"):
        VllmEngine(policy, context_length=64, max_num_seqs=2, dtype="float32", sleep_mode=True)


def test_missing_model_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises((EngineError, OSError)):
        VllmEngine(str(tmp_path), context_length=64, max_num_seqs=2, dtype="float32")


def test_the_checked_head_sizes_equal_those_of_the_installed_vllm() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES
