"""Tests of TRL's GRPOTrainer on a world of our server, through the example's environment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import get_json_schema

from environments.registry import load_world
from environments.tools import call_of
from examples.trl_textcraft import PROMPT, SPLIT, TextCraft
from tasks.starter.starting_model import build_model
from tests.drills.test_examples import python
from tests.support.playing import starting
from tests.support.shipped_templates import template_of, tokenizer_with
from tests.support.tiny_policy import TINY

pytestmark = pytest.mark.slow
STEPS, ROUNDS = 2, 60


def demonstrations() -> list[list[dict[str, Any]]]:
    """Return the expert's episodes of the tasks of both steps, as messages with tool calls."""
    world = load_world("textcraft")
    environment, episodes = world.create(), []
    for task in list(world.tasks(SPLIT))[: 2 * STEPS]:
        messages = [{"role": "user", "content": PROMPT + environment.reset(task)}]
        done = False
        while not done:
            action = environment.oracle_action()
            name, arguments = call_of(world.tools, action)
            call = {"type": "function", "function": {"name": name, "arguments": arguments}}
            step = environment.step(action)
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": name, "content": step.observation},
            ]
            done = step.done
        episodes.append([*messages, {"role": "assistant", "content": "Done."}])
    return episodes


def cloned_policy(folder: Path) -> str:
    """Save a tiny policy that calls tools in some episodes, because it imitates the expert."""
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    tokenizer.pad_token = tokenizer.eos_token
    model = build_model(TINY, tokenizer, 0)  # type: ignore[arg-type]
    tools = [get_json_schema(getattr(TextCraft, name)) for name in ("craft", "get", "inventory")]
    texts = [
        tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        for messages in demonstrations()
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, return_offsets_mapping=True)
    offsets = batch.pop("offset_mapping")
    labels = torch.full_like(batch["input_ids"], -100)
    for row, text in enumerate(texts):
        for message in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL):
            inside = (offsets[row, :, 0] >= message.start(1)) & (
                offsets[row, :, 1] <= message.end()
            )
            inside &= batch["attention_mask"][row] == 1
            labels[row, inside] = batch["input_ids"][row, inside]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(ROUNDS):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_grpo_trains_two_steps_on_textcraft_by_tool_calls(tmp_path: Path, state_dir: Path) -> None:
    policy = cloned_policy(tmp_path / "policy")
    with starting("textcraft", state_dir) as start:
        shown = python(
            tmp_path / "runs", "examples/trl_textcraft.py", policy, start().url, str(STEPS)
        )
    rows = [json.loads(line) for line in shown.splitlines() if line.startswith('{"loss"')]
    assert len(rows) == STEPS
    assert max(row["tools/call_frequency"] for row in rows) > 0
