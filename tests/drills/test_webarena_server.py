"""Tests of WebArena behind the real server: both dialects, isolated sessions and clean-up.

`tests/soaks/webarena_memory.py` measures the memory over many episodes.
"""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from environments.webarena.browser import EXECUTABLES
from environments.webarena.oracle import Oracle
from environments.webarena.tasks import embedded_tasks, plan
from environments.webarena.world import WebArena
from tests.support.chromium import chromium_processes, needs_chromium
from tests.support.playing import server_of
from tests.support.processes import command_line, ended, kill, started, wait_until

pytestmark = needs_chromium

PATIENCE_S = 1200.0
Trace = list[tuple[str, float, bool]]


@pytest.fixture(scope="module")
def url(state_dir: Path) -> Iterator[str]:
    with started(server_of("webarena", state_dir=state_dir)) as made:
        yield made.url


def ask(url: str, body: Any) -> tuple[int, Any]:
    """Send one request on a new connection, like AgentGym's clients."""
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {"Content-Type": "application/json", "Connection": "close"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def item(url: str, operation: str, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = ask(f"{url}/v1/{operation}", {"items": [fields]})[1]["items"][0]
    return reply


def solve(url: str, index: int, between: Callable[[], object] = lambda: None) -> Trace:
    """Play a task with the oracle, which sees only the server's replies."""
    begun = item(url, "create", index=index)
    assert begun["status"] == 200, begun
    oracle, seen = Oracle(plan(index), embedded_tasks()[index].start_urls[0]), begun["observation"]
    trace: Trace = [(seen, 0.0, False)]
    for turn in range(30):
        between()
        action = oracle.action(seen)
        oracle.performed(action, seen)
        reply = item(
            url,
            "step",
            session=begun["session"],
            turn=turn,
            action=f"I think that ```{action}``` is right.",
        )
        assert reply["status"] == 200, reply
        trace.append((reply["observation"], reply["reward"], reply["done"]))
        if reply["done"]:
            break
        seen = reply["observation"]
    item(url, "close", session=begun["session"])
    return trace


def one_of_each_site() -> list[int]:
    chosen: dict[str, int] = {}
    for index in WebArena({}).tasks("test"):
        task = embedded_tasks()[index]
        if task.kind == "change":
            chosen.setdefault(task.sites[0], index)
    return list(chosen.values())


def test_32_interleaved_sessions_play_as_if_alone(url: str) -> None:
    tasks = one_of_each_site()
    assert len(tasks) == 4
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda index: solve(url, index), tasks * 8))
    assert [trace[-1][1:] for trace in together] == [(1.0, True)] * 32
    assert together == together[:4] * 8


def test_a_client_of_agentgym_plays_an_episode(url: str) -> None:
    index = next(
        index for index in one_of_each_site() if embedded_tasks()[index].sites == ("shopping",)
    )
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as greeting:
        assert json.load(greeting) == "ok"
    status, created = ask(f"{url}/create", None)
    assert (status, list(created)) == (200, ["env_idx"])
    number = created["env_idx"]
    status, begun = ask(f"{url}/reset", {"seed": 0, "idx": index, "env_idx": number})
    assert status == 200
    assert (begun["sites"], begun["object"]) == (["shopping"], embedded_tasks()[index].intent)
    oracle, seen = Oracle(plan(index), "http://shop.test"), begun["observation"]
    for _ in range(20):
        action = oracle.action(seen)
        oracle.performed(action, seen)
        reply = f"Let's think step-by-step. In summary, the next action I will perform is ```{action}```"
        status, step = ask(f"{url}/step", {"action": reply, "env_idx": number})
        assert status == 200
        assert list(step) == ["observation", "reward", "terminated", "truncated", "info"]
        if step["terminated"]:
            break
        seen = step["observation"]
        with urllib.request.urlopen(
            f"{url}/observation?env_idx={number}", timeout=PATIENCE_S
        ) as answer:
            assert json.load(answer) == seen
    assert (step["reward"], step["truncated"]) == (1.0, False)
    assert ask(f"{url}/close", {"env_idx": number}) == (200, {"closed": True})
    assert ask(f"{url}/step", {"action": "```stop```", "env_idx": number})[0] == 410


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/create", {"items": [{"index": 10**6}]}, 422),
        ("/v1/create", {"items": [{"index": -1}]}, 422),
        ("/v1/step", {"items": [{"session": "x", "turn": 0, "action": "stop"}]}, 404),
        ("/reset", {"seed": 0, "idx": 10**6, "env_idx": 1}, 404),
        ("/reset", {"seed": 0, "idx": "../../etc/passwd", "env_idx": 1}, 422),
        ("/step", {"env_idx": 1}, 422),
    ],
)
def test_invalid_requests_have_the_right_status(
    url: str, path: str, body: Any, status: int
) -> None:
    answered, content = ask(url + path, body)
    assert answered == status
    assert content["error"]


def test_the_metrics_count_steps(url: str) -> None:
    solve(url, one_of_each_site()[0])
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    assert "environment_world_step_seconds_count" in text


def test_a_dead_browser_fails_its_sessions_and_the_server_continues(
    state_dir: Path,
) -> None:
    with started(server_of("webarena", state_dir=state_dir)) as made:
        index = one_of_each_site()[0]
        begun = item(made.url, "create", index=index)
        for process in chromium_processes(psutil.Process(made.pid)):
            kill(process)
        reply = item(made.url, "step", session=begun["session"], turn=0, action="scroll [down]")
        assert (reply["status"], reply["error"]["type"]) == (500, "world_fault")
        assert "BrowserLostError" in reply["error"]["message"]
        assert "bug" not in reply["error"]["message"]
        assert (
            item(made.url, "step", session=begun["session"], turn=0, action="scroll [down]")[
                "status"
            ]
            == 410
        )
        assert solve(made.url, index)[-1][1] == 1.0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_leaves_no_browser(state_dir: Path, ending: signal.Signals) -> None:
    made = server_of("webarena", state_dir=state_dir)
    made.start()
    item(made.url, "create", index=0)
    root = psutil.Process(made.pid)
    browsers = chromium_processes(root)
    assert len(browsers) >= 3
    [process] = [
        child for child in root.children(recursive=True) if "environments" in command_line(child)
    ]
    process.send_signal(ending)
    wait_until(lambda: all(ended(browser) for browser in browsers))
    made.end()


@pytest.mark.parametrize("browser", [name for name in EXECUTABLES if shutil.which(name)])
def test_vanished_clients_leave_nothing_after_their_lease(state_dir: Path, browser: str) -> None:
    with started(server_of("webarena", state_dir=state_dir, WEBARENA_CHROMIUM=browser)) as made:
        item(made.url, "close", session=item(made.url, "create", index=0)["session"])
        root = psutil.Process(made.pid)

        def renderers() -> int:
            return sum(
                "--type=renderer" in command_line(process) for process in chromium_processes(root)
            )

        def sessions() -> int:
            with urllib.request.urlopen(f"{made.url}/health", timeout=PATIENCE_S) as answer:
                return int(json.load(answer)["sessions"])

        wait_until(lambda: renderers() <= 1)  # Chromium keeps a spare process
        for index in range(4):
            assert item(made.url, "create", index=index, lease_s=0.5)["status"] == 200
        wait_until(lambda: sessions() == 0)
        wait_until(lambda: renderers() <= 1)


@pytest.mark.slow
def test_the_oracle_solves_every_second_task_of_the_evaluation_list(url: str) -> None:
    indices = WebArena({}).tasks("webarena-ours-50")[::2]
    with ThreadPoolExecutor(4) as pool:
        rewards = dict(
            zip(indices, pool.map(lambda index: solve(url, index)[-1][1], indices), strict=True)
        )
    assert rewards == dict.fromkeys(indices, 1.0)
