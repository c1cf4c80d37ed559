"""Tests of the environment server's own dialect over HTTP."""

from __future__ import annotations

import json
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.counting_servers import Serve
from tests.support.processes import wait_until
from tests.support.server_requests import PATIENCE_S, open_sessions, post, start


def test_episode_is_played_from_create_to_close(counting_server: str) -> None:
    [created] = post(counting_server, "create", {"index": 5, "lease_s": 30})
    assert (created["observation"], created["turn"], created["lease_s"]) == ("Goal: 5.", 0, 30)
    session = created["session"]
    steps = [
        post(counting_server, "step", {"session": session, "turn": turn, "action": "add 1"})[0]
        for turn in range(5)
    ]
    assert [
        (step["turn"], step["observation"], step["reward"], step["done"]) for step in steps
    ] == [(turn, f"Count: {turn + 1}", float(turn == 4), turn == 4) for turn in range(5)]
    [over] = post(counting_server, "step", {"session": session, "turn": 5, "action": "add 1"})
    assert (over["status"], over["error"]["type"]) == (409, "episode_over")
    begun = {"status": 200, "session": session, "turn": 0, "observation": "Goal: 7."}
    assert post(counting_server, "reset", {"session": session, "index": 7}) == [begun]
    assert post(counting_server, "close", {"session": session}) == [
        {"status": 200, "session": session}
    ]
    assert post(counting_server, "close", {"session": session})[0]["status"] == 410


def test_invalid_items_do_not_fail_the_others(counting_server: str) -> None:
    good, other = start(counting_server), start(counting_server)
    response = requests.post(
        f"{counting_server}/v1/step",
        json={
            "items": [
                {"session": good, "turn": 0, "action": "add 1"},
                {"session": "nobody", "turn": 0, "action": "add 1"},
                {"session": good, "turn": "1", "action": "add 1"},
                {"session": good, "turn": 1},
                {"session": good, "turn": 1, "action": "add 1", "hurry": True},
                7,
                {"session": good, "turn": 9, "action": "add 1"},
                {"session": good, "turn": 1, "action": "add 2"},
                {"session": other, "turn": 0, "action": "fail"},
                {"session": other, "turn": 1, "action": "add 1"},
            ]
        },
        timeout=PATIENCE_S,
    )
    items = response.json()["items"]
    assert response.status_code == 200
    assert [item["status"] for item in items] == [200, 404, 422, 422, 422, 422, 409, 200, 500, 410]
    assert [item.get("error", {}).get("field") for item in items] == [
        None, "session", "turn", "action", "hurry", None, "turn", None, None, "session",
    ]  # fmt: skip
    assert items[7]["observation"] == "Count: 3"


def test_repeated_turn_is_answered_without_performing_it_again(counting_server: str) -> None:
    session = start(counting_server)
    item = {"session": session, "turn": 0, "action": "add 3"}
    assert post(counting_server, "step", item) == post(counting_server, "step", item)
    assert post(counting_server, "step", {**item, "turn": 1})[0]["observation"] == "Count: 6"
    [changed] = post(counting_server, "step", {**item, "turn": 1, "action": "add 4"})
    assert (changed["status"], changed["error"]["type"]) == (409, "turn_repeated")
    [ahead] = post(counting_server, "step", {**item, "turn": 3})
    assert (ahead["status"], ahead["error"]["type"]) == (409, "wrong_turn")
    [behind] = post(counting_server, "step", {**item, "turn": 0})
    assert behind["status"] == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "type"),
    [
        ("POST", "/v1/step", b"{", 400, "malformed_json"),
        ("POST", "/v1/step", b"\xff\xfe", 400, "malformed_json"),
        ("POST", "/v1/step", b'{"items": ' + b"[" * 100_000, 400, "malformed_json"),
        ("POST", "/v1/step", b"[]", 422, "invalid_field"),
        ("POST", "/v1/step", b"{}", 422, "invalid_field"),
        ("POST", "/v1/step", b'{"items": [], "more": 1}', 422, "invalid_field"),
        ("POST", "/v1/create", b'{"items": [{"index": 100}]}', 422, "no_such_task"),
        ("POST", "/v1/create", b'{"items": [{"index": 1e400}]}', 422, "invalid_field"),
        (
            "POST",
            "/v1/create",
            b'{"items": [{"index": 99999999999999999999}]}',
            422,
            "invalid_field",
        ),
        ("POST", "/v1/create", b'{"items": [{"lease_s": 0}]}', 422, "invalid_field"),
        ("POST", "/v1/create", b'{"items": [{"lease_s": 1e9}]}', 422, "invalid_field"),
        ("POST", "/v1/close", b'{"items": [{"session": "x"}]}', 404, "no_such_session"),
        (
            "POST",
            "/v1/create",
            b'{"items": [' + b'{"index":0},' * 10_000 + b'{"index":0}]}',
            413,
            "too_many_items",
        ),
        ("POST", "/v1/step", b" " * (16 * 2**20 + 1), 413, "body_too_large"),
        ("GET", "/v1/step", b"", 405, "not_allowed"),
        ("POST", "/health", b"", 405, "not_allowed"),
        ("GET", "/v1/nothing", b"", 404, "not_found"),
        ("GET", "/v1/tasks?split=dev", b"", 422, "invalid_field"),
    ],
)
def test_invalid_request_gets_a_status_an_error_type_and_a_message(
    counting_server: str, method: str, path: str, body: bytes, status: int, type: str
) -> None:
    response = requests.request(method, counting_server + path, data=body, timeout=PATIENCE_S)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (status, type)
    assert error["message"]


@pytest.mark.parametrize("action", ["fail", "reward nan", "reward 7", "reward -5", "surrogate"])
def test_a_bug_in_the_world_is_a_500_that_ends_the_session_and_is_logged(
    serve: Serve, action: str
) -> None:
    server = serve()
    session = start(server.url)
    [reply] = post(server.url, "step", {"session": session, "turn": 0, "action": action})
    assert (reply["status"], reply["error"]["type"]) == (500, "world_fault")
    assert (
        post(server.url, "step", {"session": session, "turn": 0, "action": action})[0]["status"]
        == 410
    )
    assert open_sessions(server.url) == 0
    entries = [json.loads(line) for line in server.log_tail().splitlines()]
    assert any(entry.get("traceback") for entry in entries)


def test_sessions_of_vanished_clients_end_with_their_lease(serve: Serve) -> None:
    url = serve().url
    replies = post(url, "create", *({"index": 1, "lease_s": 0.5} for _ in range(1000)))
    assert {reply["status"] for reply in replies} == {200}
    survivor = start(url, lease_s=PATIENCE_S)
    wait_until(lambda: open_sessions(url) == 1)
    [gone] = post(url, "step", {"session": replies[0]["session"], "turn": 0, "action": "add 1"})
    assert (gone["status"], gone["error"]["type"]) == (410, "session_ended")
    assert (
        post(url, "step", {"session": survivor, "turn": 0, "action": "add 1"})[0]["status"] == 200
    )


def test_full_server_answers_503_until_a_session_ends(serve: Serve) -> None:
    url = serve("counting", "--max-sessions", "2").url
    first, _ = start(url), start(url)
    response = requests.post(f"{url}/v1/create", json={"items": [{}]}, timeout=PATIENCE_S)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "session_limit")
    assert response.headers["retry-after"]
    post(url, "close", {"session": first})
    start(url)


def test_interleaved_sessions_equal_sessions_that_are_played_alone(counting_server: str) -> None:
    rng = random.Random(0)
    goals = [rng.randrange(20, 100) for _ in range(64)]
    actions = [[f"add {rng.randrange(3)}" for _ in range(12)] for _ in goals]

    def alone(goal: int, plan: list[str]) -> list[Any]:
        session = start(counting_server, goal)
        asked = [
            {"session": session, "turn": turn, "action": action} for turn, action in enumerate(plan)
        ]
        return [{**post(counting_server, "step", item)[0], "session": ""} for item in asked]

    expected = [alone(goal, plan) for goal, plan in zip(goals[:8], actions[:8], strict=True)]
    sessions = [start(counting_server, goal) for goal in goals]
    seen: list[list[Any]] = [[] for _ in goals]
    for turn in range(12):
        order = rng.sample(range(64), 64)
        items = [
            {"session": sessions[at], "turn": turn, "action": actions[at][turn]} for at in order
        ]
        for at, reply in zip(order, post(counting_server, "step", *items), strict=True):
            seen[at].append({**reply, "session": ""})
    assert seen[:8] == expected


def test_slow_step_delays_only_its_own_session(serve: Serve, tmp_path: Path) -> None:
    url = serve("slow_counting").url
    slow, fast = start(url), start(url)
    gate, begun = tmp_path / "gate", tmp_path / "gate.begun"
    with ThreadPoolExecutor(2) as pool:
        try:
            held = pool.submit(
                post, url, "step", {"session": slow, "turn": 0, "action": f"await {gate}"}
            )
            wait_until(begun.exists)
            after = pool.submit(
                post,
                url,
                "step",
                *({"session": slow, "turn": turn, "action": "add 1"} for turn in (1, 2, 3)),
            )
            assert (
                post(url, "step", {"session": fast, "turn": 0, "action": "add 1"})[0]["status"]
                == 200
            )
            assert not held.done()
            assert not after.done()
        finally:
            gate.touch()
    assert held.result()[0]["status"] == 200
    assert [reply.get("observation") for reply in after.result()] == [
        "Count: 1",
        "Count: 2",
        "Count: 3",
    ]


def test_every_reply_names_the_session_and_the_turn_of_its_item(counting_server: str) -> None:
    session = start(counting_server)
    asked = [
        {"session": session, "turn": 0, "action": "add 1"},
        {"session": session, "turn": 9, "action": "add 1"},
        {"session": "0-0", "turn": 3, "action": "add 1"},
        {"session": session, "turn": 4, "action": 5},
    ]
    replies = post(counting_server, "step", *asked)
    assert [reply["status"] for reply in replies] == [200, 409, 404, 422]
    assert [(reply["session"], reply["turn"]) for reply in replies] == [
        (item["session"], item["turn"]) for item in asked
    ]
    assert [
        reply["session"]
        for reply in post(counting_server, "close", {"session": session}, {"session": "0-0"})
    ] == [session, "0-0"]
    keys = [
        reply["key"]
        for reply in post(
            counting_server, "create", {"index": 1, "key": "a"}, {"index": 1000, "key": "b"}
        )
    ]
    assert keys == ["a", "b"]


@pytest.mark.parametrize("world", ["counting", "slow_counting"])
def test_repeated_create_returns_the_session_of_the_first(serve: Serve, world: str) -> None:
    url = serve(world).url
    asked = [{"index": number, "key": f"key {number}"} for number in range(8)]
    first = [(reply["session"], reply["observation"]) for reply in post(url, "create", *asked)]
    assert [
        (reply["session"], reply["observation"]) for reply in post(url, "create", *asked)
    ] == first
    assert open_sessions(url) == 8
    post(url, "step", {"session": first[0][0], "turn": 0, "action": "add 1"})
    post(url, "close", {"session": first[1][0]})
    played, closed = post(url, "create", asked[0], asked[1])
    assert (played["status"], played["error"]["type"]) == (409, "key_repeated")
    assert (closed["status"], closed["session"] != first[1][0]) == (200, True)


def test_server_describes_its_world_tasks_and_health(counting_server: str) -> None:
    def get(path: str) -> Any:
        return requests.get(counting_server + path, timeout=PATIENCE_S).json()

    world = get("/v1/world")
    assert [tool["name"] for tool in world.pop("tools")] == ["act"]
    assert world == {
        "name": "counting",
        "version": "1",
        "instruction": "Reach the goal by `add N`.",
        "tasks": {"train": 60, "validation": 20, "test": 20},
        "entry": "tests.support.counting_world:Counting",
        "rules": "ours",
        "success_score": 1.0,
        "reward_range": [0.0, 1.0],
        "member_tools": [],
    }
    assert get("/v1/tasks?split=test") == {"split": "test", "tasks": list(range(80, 100))}
    health = get("/health")
    assert (health["name"], health["version"], health["tasks"]) == ("counting", "1", 100)


def test_openapi_describes_every_operation_and_every_reference_resolves(
    counting_server: str,
) -> None:
    document = requests.get(f"{counting_server}/openapi.json", timeout=PATIENCE_S).json()
    assert {f"/v1/{name}" for name in ("create", "reset", "step", "close", "world", "tasks")} < set(
        document["paths"]
    )
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document)))
    assert references
    assert references <= set(document["components"]["schemas"])
    assert set(document["components"]["schemas"]["StepItem"]["required"]) == {
        "session",
        "turn",
        "action",
    }


def test_metrics_count_items_sessions_and_errors(serve: Serve) -> None:
    url = serve().url
    session = start(url)
    for turn in range(3):
        post(url, "step", {"session": session, "turn": turn, "action": "add 1"})
    post(url, "step", {"session": session, "turn": 9, "action": "add 1"})
    text = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
    samples = {
        (
            sample.name,
            sample.labels.get("operation") or sample.labels.get("type") or sample.labels.get("how"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["environment_items_total", "step"] == 4
    assert samples["environment_world_step_seconds_count", None] == 3
    assert samples["environment_world_reset_seconds_count", None] == 1
    assert samples["environment_sessions_open", None] == 1
    assert samples["environment_sessions_total", "created"] == 1
    assert samples["environment_errors_total", "wrong_turn"] == 1


def test_sigterm_ends_the_server_cleanly_with_keep_alive_connections_open(serve: Serve) -> None:
    server = serve()
    with requests.Session() as keeps_alive:
        keeps_alive.get(f"{server.url}/health", timeout=PATIENCE_S)
        [command] = psutil.Process(server.pid).children()
        command.send_signal(signal.SIGTERM)
        assert psutil.Process(server.pid).wait(PATIENCE_S) in (0, None)
    last = [json.loads(line) for line in server.log_tail().splitlines()][-1]
    assert last["level"] == "info"
