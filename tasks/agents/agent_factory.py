"""Agent factory: opens the agent that a collection names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from configs.collection import Collection, Source
from environments.errors import WrongWorldError
from environments.protocol import WorldInfo
from environments.tools import Tool
from tasks.agents.action_format import ActionFormat, reading_format
from tasks.agents.agent import Agent
from tasks.agents.chat_format import ChatFormat, chat_formats
from tasks.inference.engine import Engine
from tasks.inference.event_loop import in_event_loop
from tasks.starter.gguf_model import hugging_face_model


@contextmanager
def open_agent(
    collection: Collection,
    world: WorldInfo,
    *,
    gpu_memory_fraction: float = 0.45,
    cpu_cache_gb: float | None = None,
) -> Iterator[Agent]:
    """Open the agent of a collection for the duration of the block.

    Args:
        world: World that the servers host.
        gpu_memory_fraction: Fraction of the GPU's memory for vLLM in this process.
        cpu_cache_gb: KV cache of vLLM on a CPU, in GiB. None: see `cpu_cache_bytes`.

    Raises:
        EngineError: The engine could not start, or an endpoint gives invalid answers.
        OSError: A model or tokenizer is not available.
        WrongWorldError: A scripted policy has another version of the world than the servers, or
            cannot play it.
    """
    source = collection.source
    instruction = world.instruction if collection.source.instruction else None
    action_format = reading_format(
        source.action_format, collection.environment.name, collection.environment.rules
    )
    if source.kind in ("oracle", "random"):
        from environments.registry import load_world
        from tasks.agents.scripted_agent import ScriptedAgent

        known = load_world(collection.environment.name, collection.environment.rules)
        if world.version not in ("", known.version):
            raise WrongWorldError(
                f"the servers host {world.identity}, but this process has version {known.version} "
                f"of the world for the {source.kind} policy. Use servers of the same version.",
                hosted=world.version,
                expected=known.version,
            )
        formats = _chat_formats(
            source, source.tokenizer, instruction, action_format, known.tool_lists
        )
        yield ScriptedAgent(known, action_format, formats, source.kind)
        return
    if source.kind == "openai":
        from tasks.agents.chat_agent import ChatAgent

        assert source.model is not None
        agent = ChatAgent(
            source.urls[0],
            source.model,
            action_format=action_format,
            instruction=instruction,
            conversation_start=source.conversation_start,
            chat_template_kwargs=source.chat_template_kwargs,
            chat_formats=_chat_formats(
                source, source.tokenizer, instruction, action_format, world.tool_lists
            ),
            tool_lists=world.tool_lists,
        )
        try:
            yield agent
        finally:
            in_event_loop(agent.close())
        return
    from tasks.agents.token_agent import TokenAgent
    from tasks.inference.engine_factory import local_engine

    engine: Engine
    if source.kind == "vllm":
        from tasks.inference.pool_engine import VllmPoolEngine

        servers = VllmPoolEngine(source.urls, request_seconds=collection.rollout.request_seconds)
        engine, model = servers, servers.model
    else:
        assert source.model is not None
        model = hugging_face_model(source.model)
        engine = local_engine(
            collection.rollout,
            source.dtype,
            model,
            gpu_memory_fraction=gpu_memory_fraction,
            cpu_cache_gb=cpu_cache_gb,
        )
    try:
        model_formats = _chat_formats(
            source, source.tokenizer or model, instruction, action_format, world.tool_lists
        )
        yield TokenAgent(engine, model_formats)
    finally:
        engine.close()


def _chat_formats(
    source: Source,
    tokenizer: str | None,
    instruction: str | None,
    action_format: ActionFormat,
    tool_lists: Sequence[Sequence[Tool]],
) -> list[ChatFormat]:
    """Return the chat format of each world. Empty without a tokenizer."""
    if tokenizer is None:
        return []
    from transformers import AutoTokenizer

    return chat_formats(
        AutoTokenizer.from_pretrained(hugging_face_model(tokenizer)),
        action_format,
        instruction,
        conversation_start=source.conversation_start,
        # The learner's tokenizer may have another template than the endpoint, which gets the
        # variables.
        chat_template_kwargs=None if source.kind == "openai" else source.chat_template_kwargs,
        tool_lists=tool_lists,
        thinking=source.thinking,
        compaction=source.compaction,
    )
