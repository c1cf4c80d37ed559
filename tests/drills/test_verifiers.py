"""Tests of verifiers' OpenEnvTaskset on a world of our server, with the expert as the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from environments.registry import load_world
from tasks.endpoint.app import Endpoint, ServedPolicy
from tasks.endpoint.chat_tokens import ChatTokens
from tasks.endpoint.recording import Recording
from tasks.inference.engine import Generation, Sampling
from tasks.inference.token_guard import VARIABLE
from tests.support.playing import starting
from tests.support.served_endpoint import serving
from tests.support.shipped_templates import template_of, tokenizer_with

pytestmark = [pytest.mark.slow, pytest.mark.registry]
VERIFIERS = ("verifiers==0.4.0", "uv==0.13.9")
OPENENV = "openenv==0.10.0"
CLIENT = ("fastapi==0.165.0", "fastmcp==4.2.3", "websockets==17.4")
"""Packages that OpenEnv's client imports. No mcp release satisfies both OpenEnv and verifiers."""
TOKEN = "the-token-of-the-test"
SPLIT, TASKS = "wood-train", 3


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of a virtual environment with verifiers and OpenEnv."""
    folder = tmp_path_factory.mktemp("verifiers")
    pip = [sys.executable, "-m", "pip"]
    reached = subprocess.run(
        [*pip, "download", "--quiet", "--no-deps", "--dest", folder / "wheels", VERIFIERS[0]],
        check=False,
    )
    if reached.returncode:
        pytest.skip("no package registry with verifiers is reachable")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    for words in (VERIFIERS, ("--no-deps", OPENENV), CLIENT):
        subprocess.run([programs / "pip", "install", "--quiet", "--no-compile", *words], check=True)
    return programs


class Expert:
    """An engine whose messages are the expert's actions in TextCraft."""

    name, context_length = "expert", 100_000

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        world = load_world("textcraft")
        self._world = world.create()
        self._tasks = {self._world.reset(task): task for task in list(world.tasks(SPLIT))[:TASKS]}

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        chat = re.findall(
            r"<\|im_start\|>(user|assistant)\n(.*?)<\|im_end\|>",
            self._tokenizer.decode(list(tokens)),
            re.DOTALL,
        )
        first = next(json.loads(text) for role, text in chat if role == "user")
        self._world.reset(self._tasks[first["observation"]["text"]])
        for role, action in chat:
            if role == "assistant":
                self._world.step(action)
        written = self._tokenizer.encode(self._world.oracle_action(), add_special_tokens=False)
        written = [*written, sampling.stop_tokens[0]]
        return Generation(written, [-1.0] * len(written))


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Endpoint]]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    engine: Any = Expert(tokenizer)
    policy = ServedPolicy(
        "expert",
        engine,
        ChatTokens(tokenizer),
        temperature=1.0,
        answer_tokens=500,
        horizon=99,
        success_score=1.0,
        environment="textcraft",
        seed=0,
    )
    endpoint = Endpoint(policy, Recording(tmp_path / "recorded", {"model": "expert"}))
    with serving(endpoint.app) as port:
        yield f"http://127.0.0.1:{port}/v1", endpoint


def toml(table: dict[str, Any]) -> str:
    """Return a table in TOML, with one line per field."""

    def value(given: Any) -> str:
        if isinstance(given, dict):
            return "{" + ", ".join(f"{name} = {value(each)}" for name, each in given.items()) + "}"
        if isinstance(given, list):
            return f"[{', '.join(map(value, given))}]"
        return json.dumps(given)

    return "".join(f"{name} = {value(given)}\n" for name, given in table.items())


def test_the_taskset_solves_textcraft_with_the_expert(
    programs: Path, endpoint: tuple[str, Endpoint], tmp_path: Path, state_dir: Path
) -> None:
    url, served = endpoint
    with starting("textcraft", state_dir) as start:
        resets = [{"split": SPLIT, "index": index} for index in range(TASKS)]
        recipe = {
            "model": "any",
            "output_dir": str(tmp_path / "out"),
            "push": False,
            "client": {"base_url": url, "api_key_var": "KEY"},
            "env": {
                "taskset": {"id": "openenv", "base_url": start().url, "resets": resets},
                "player": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
            },
        }
        (tmp_path / "recipe.toml").write_text(toml(recipe), encoding="utf-8")
        done = subprocess.run(
            [programs / "vf-eval", "@", "recipe.toml", "--no-rich"],
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "KEY": TOKEN,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (file,) = (tmp_path / "out").glob("*/traces.jsonl")
    played = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [episode["errors"] for episode in played] == [[]] * TASKS
    rewards = [trace["rewards"] for episode in played for trace in episode["traces"]]
    assert [reward["openenv_reward"]["score"] for reward in rewards] == [1.0] * TASKS
    assert [len(episode.rows) for episode in served.episodes.open.values()] == [1] * TASKS
