"""Makes the policy that a collection names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from configs.collection import Collection, Source
from tasks.policy.dialogue import Dialogue
from tasks.policy.engine import Engine
from tasks.policy.policy import Policy


@contextmanager
def opened_policy(
    collection: Collection, instruction: str, *, gpu_memory_fraction: float = 0.45, cpu_cache_gb: int = 1
) -> Iterator[Policy]:
    """The policy of a collection, ready to play while the block lasts.

    Args:
        collection: What is collected.
        instruction: What the environment tells an agent first.
        gpu_memory_fraction: Share of the GPU's memory for vLLM in this process.
        cpu_cache_gb: KV cache of vLLM on a CPU, in GiB.

    Raises:
        EngineFault: The engine could not start, or an endpoint does not answer as it should.
        OSError: A model or tokenizer is not to be had.
    """
    source, told = collection.source, instruction if collection.source.instruction else None
    if source.kind == "oracle":
        from environments.registry import load_world
        from tasks.policy.oracle_policy import OraclePolicy

        yield OraclePolicy(load_world(collection.environment), source.message, _dialogue(source, source.tokenizer, told))
        return
    if source.kind == "openai":
        from tasks.policy.chat_policy import ChatPolicy

        assert source.model is not None
        yield ChatPolicy(
            source.urls[0],
            source.model,
            form=source.message,
            instruction=told,
            dialogue=_dialogue(source, source.tokenizer, told),
        )
        return
    from tasks.policy.loading import local_engine
    from tasks.policy.token_policy import TokenPolicy

    engine: Engine
    if source.kind == "vllm":
        from tasks.policy.vllm_server_engine import VllmServerEngine

        servers = VllmServerEngine(source.urls, request_seconds=collection.rollout.request_seconds)
        engine, model = servers, servers.model
    else:
        assert source.model is not None
        model = source.model
        engine = local_engine(collection.rollout, source.dtype, model, gpu_memory_fraction=gpu_memory_fraction, cpu_cache_gb=cpu_cache_gb)
    try:
        dialogue = _dialogue(source, source.tokenizer or model, told)
        assert dialogue is not None
        yield TokenPolicy(engine, dialogue)
    finally:
        engine.close()


def _dialogue(source: Source, tokenizer: str | None, instruction: str | None) -> Dialogue | None:
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    return Dialogue(AutoTokenizer.from_pretrained(tokenizer), source.message, instruction)
