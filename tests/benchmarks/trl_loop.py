"""TRL's own multi-turn loop on the benchmark's episodes.

The loop is `GRPOTrainer` with `environment_factory` and colocated vLLM. The tool-call loop
(`_tool_call_loop`), its calls of `LLM.generate`, the chat templates, the tokenisation and the
environment as an awaited tool are TRL's. The following parts are replaced, which does not make it
slower:

- Its `LLM` gets the engine and settings of this project's side. TRL's own engine would compile the
  model on a CPU. Its prefix-cache blocks are four times as large, so it would compute most of a
  short dialogue again each turn.
- Every message of the random policy counts as a call of the tool, instead of TRL's parser. The tool
  performs the expert's action, as on this project's side.
- It stops before scoring and padding. Only resets of the environments, rendering of the prompts and
  generation are timed.

In TRL an episode ends only with a message that calls no tool. So there is one message more after
the world has ended the episode.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.benchmarks.rollouts import Latency, Sides

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '<|assistant|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments "
    "}}{% endfor %}{{ '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The starter policy's template, with the tool calls that TRL requires."""
EPISODE_END = "~over~"
"""Marker at the end of an observation that ends its episode."""


class GenerationDone(Exception):
    """The generation is done. The rest of TRL's step is not measured."""


class TextCraft:
    """An environment for TRL that plays TextCraft on a server over one keep-alive connection."""

    url: str
    solutions: dict[int, list[str]]

    def __init__(self) -> None:
        self._http = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def reset(self, task: int, **_: Any) -> str:
        self.task, self.turn = task, 0
        reply = self._ask("create", {"index": task})
        self.session = reply["session"]
        return str(reply["observation"])

    def _act(self) -> str:
        reply = self._ask(
            "step",
            {
                "session": self.session,
                "turn": self.turn,
                "action": self.solutions[self.task][self.turn],
            },
        )
        self.turn += 1
        if not reply["done"]:
            return str(reply["observation"])
        assert reply["reward"] == 1.0
        self._ask("close", {"session": self.session})
        return f"{reply['observation']}{EPISODE_END}"

    def _ask(self, operation: str, item: dict[str, Any]) -> dict[str, Any]:
        self._http.request(
            "POST",
            f"/v1/{operation}",
            json.dumps({"items": [item]}),
            {"content-type": "application/json"},
        )
        [reply] = json.loads(self._http.getresponse().read())["items"]
        assert reply["status"] == 200, reply
        return dict(reply)


class PromptTextCraft(TextCraft):
    """An environment whose tool returns without delay."""

    def act(self, message: str) -> str:
        """
        Perform an action.

        Args:
            message: Message of the policy.
        """
        return self._act()


class DelayedTextCraft(TextCraft):
    """An environment whose tool returns after a latency."""

    _latency: Latency

    async def act(self, message: str) -> str:
        """
        Perform an action.

        Args:
            message: Message of the policy.
        """
        await asyncio.sleep(type(self)._latency(self.task, self.turn))
        return self._act()


class TrlLoop:
    """A TRL trainer that uses the engine of this project's side."""

    def __init__(
        self,
        sides: Sides,
        model: str,
        folder: Path,
        in_flight: int,
        horizon: int,
        latency: Latency | None,
    ) -> None:
        """`latency` is that of the environment, or None for no delay."""
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer
        from trl.trainer import grpo_trainer
        from vllm.v1.engine.llm_engine import LLMEngine

        loop = self

        class Trainer(GRPOTrainer):  # type: ignore[misc]
            def _generate(self, prompts: list[Any]) -> Any:
                loop.generated = super()._generate(prompts)
                raise GenerationDone

        environment: type[TextCraft] = PromptTextCraft if latency is None else DelayedTextCraft
        environment.url, environment.solutions = sides.url, sides.agent.solutions
        if latency is not None:
            DelayedTextCraft._latency = staticmethod(latency)
        tokenizer = AutoTokenizer.from_pretrained(model, chat_template=TEMPLATE)
        # TRL requires this attribute, but the parser that reads it is replaced
        tokenizer.response_template = {}
        episode_end = tokenizer.encode(f"{EPISODE_END}<|assistant|>", add_special_tokens=False)

        def parse(
            tokenizer: Any, ids: Sequence[int], prefix: Sequence[int] = (), tools: Any = None
        ) -> dict[str, Any]:
            text = tokenizer.decode(ids, skip_special_tokens=True)
            if list(prefix[-len(episode_end) :]) == episode_end:
                return {"role": "assistant", "content": text}
            call = {"type": "function", "function": {"name": "act", "arguments": {"message": text}}}
            return {"role": "assistant", "content": text, "tool_calls": [call]}

        grpo_trainer.parse_response = parse
        stops = list(sides.agent.chat_format.stop_tokens)
        arguments = GRPOConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=in_flight,
            num_generations=2,
            beta=0.0,
            max_completion_length=sides.engine.context_length,
            max_tool_calling_iterations=horizon,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=sides.engine.context_length,
            temperature=1.0,
            generation_kwargs={"max_tokens": 32, "stop_token_ids": stops, "detokenize": False},
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
        )
        start = LLMEngine.from_engine_args
        LLMEngine.from_engine_args = lambda *_, **__: sides.engine._engine  # type: ignore[method-assign, assignment]
        try:
            self.trainer = Trainer(
                model=model,
                reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
                args=arguments,
                train_dataset=Dataset.from_list(
                    [{"prompt": [{"role": "user", "content": ""}]}] * in_flight
                ),
                processing_class=tokenizer,
                environment_factory=environment,
            )
        finally:
            LLMEngine.from_engine_args = start  # type: ignore[method-assign]
        # Both sides keep the initial weights of the engine.
        self.trainer._last_loaded_step = self.trainer.state.global_step
        self.trainer.model.train()
        self._in_flight = in_flight

    def collect(self, tasks: Sequence[int]) -> int:
        """Play an episode of each task, `in_flight` at a time. Return the sampled tokens' count."""
        tokens = 0
        for begin in range(0, len(tasks), self._in_flight):
            rows = [
                {"prompt": [{"role": "user", "content": ""}], "task": task}
                for task in tasks[begin : begin + self._in_flight]
            ]
            try:
                self.trainer._generate_and_score_completions(rows)
            except GenerationDone:
                mask = self.generated[2]
                tokens += sum(sum(row) for row in mask)
        return tokens
