"""Tests of OpenEnv's protocol over raw WebSockets and the world `openenv`, and of its packages."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from environments.__main__ import main
from environments.environment import SPLITS
from environments.registry import load_world
from environments.server.app import Options, application
from tests.support.counting_servers import Serve
from tests.support.echo_sessions import Echo
from tests.support.playing import starting
from tests.support.processes import wait_until
from tests.support.server_requests import PATIENCE_S, open_sessions


@contextmanager
def opened(url: str, query: str = "", **headers: str) -> Iterator[ClientConnection]:
    with connect(
        f"ws{url.removeprefix('http')}/ws{query}",
        additional_headers=headers,
        open_timeout=PATIENCE_S,
    ) as socket:
        yield socket


def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "data": data}))
    answered: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    return answered


def test_episode_is_played_over_a_socket(counting_server: str) -> None:
    with opened(counting_server) as socket:
        begun = ask(socket, "reset", split="test", index=2, episode_id="mine", unknown=1)
        assert begun["type"] == "observation"
        assert begun["data"]["observation"]["text"] == "Goal: 82."
        assert (begun["data"]["reward"], begun["data"]["done"]) == (None, False)
        refused = ask(socket, "step", action="jump")["data"]
        assert (refused["metadata"], refused["reward"], refused["done"]) == (
            {"refused": True},
            0.0,
            False,
        )
        stepped = ask(socket, "step", action="add 82", metadata={})["data"]
        assert (stepped["observation"]["text"], stepped["reward"], stepped["done"]) == (
            "Count: 82",
            1.0,
            True,
        )
        assert ask(socket, "state")["data"] == {"episode_id": "mine", "step_count": 2}
        assert ask(socket, "step", action="add 1")["data"]["code"] == "EXECUTION_ERROR"
        assert [ask(socket, "reset", seed=61)["data"]["observation"]["text"] for _ in range(2)] == [
            "Goal: 1."
        ] * 2
        socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE_S)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("{", "INVALID_JSON"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ("{}", "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"act": "add 1"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"split": "none"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"index": 60}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": "add 1"}}', "EXECUTION_ERROR"),
    ],
)
def test_invalid_message_gets_an_error_code_and_keeps_the_session(
    counting_server: str, sent: str, code: str
) -> None:
    with opened(counting_server) as socket:
        socket.send(sent)
        assert json.loads(socket.recv(PATIENCE_S))["data"]["code"] == code
        assert ask(socket, "reset", seed=0)["type"] == "observation"


def test_session_ends_with_its_socket_a_failed_world_or_its_lease(serve: Serve) -> None:
    url = serve("counting", "--max-sessions", "1", "--lease", "1").url
    with opened(url) as socket:
        ask(socket, "reset", seed=0)
        with opened(url) as other:
            assert json.loads(other.recv(PATIENCE_S))["data"]["code"] == "CAPACITY_REACHED"
            with pytest.raises(ConnectionClosed):
                other.recv(PATIENCE_S)
    wait_until(lambda: open_sessions(url) == 0)
    with opened(url) as socket:
        ask(socket, "reset", seed=0)
        assert ask(socket, "step", action="fail")["data"]["code"] == "SESSION_ERROR"
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE_S)
    with opened(url) as socket:
        ended = json.loads(socket.recv(PATIENCE_S))["data"]
        assert (ended["code"], "--lease" in ended["message"]) == ("SESSION_ERROR", True)
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE_S)
    wait_until(lambda: open_sessions(url) == 0)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("state", {}),
        ("step", {"type": "list_tools"}),
        ("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        ("dance", {}),
    ],
)
def test_every_message_renews_the_lease(kind: str, data: dict[str, Any]) -> None:
    app, dispatcher = application(Echo(), Options())
    create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    with TestClient(app).websocket_connect("/ws") as socket:
        socket.send_json({"type": "mcp", "data": create})
        session = dispatcher.sessions.get(socket.receive_json()["data"]["result"]["session_id"])
        assert session is not None
        before = session.expires
        socket.send_json({"type": kind, "data": data})
        socket.receive_json()
        assert session.expires > before


def test_a_message_over_the_limit_ends_its_session(serve: Serve) -> None:
    url = serve().url
    with opened(url) as socket:
        socket.send(json.dumps({"type": "step", "data": {"action": "x" * 2**20}}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
    wait_until(lambda: open_sessions(url) == 0)


def test_sockets_require_the_token_and_refuse_origins(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_TOKEN", "secret")
    url = serve().url
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer secret", "Origin": "http://page.example"}, 403),
    ):
        with pytest.raises(InvalidStatus) as refused, opened(url, **headers):
            pass
        assert refused.value.response.status_code == status
    with opened(url, Authorization="Bearer secret") as socket:
        assert ask(socket, "reset")["type"] == "observation"


def test_agentgym_and_openenv_requests_share_paths(counting_server: str) -> None:
    def post(path: str, body: Any) -> tuple[int, Any]:
        answered = requests.post(counting_server + path, json=body, timeout=PATIENCE_S)
        return answered.status_code, answered.json()

    before = open_sessions(counting_server)
    status, begun = post("/reset", {"seed": 7})
    assert (status, begun["observation"]["text"]) == (200, "Goal: 7.")
    assert open_sessions(counting_server) == before
    assert post("/step", {"action": {"action": "add 1"}})[0] == 409
    assert post("/step", {"action": {"act": "add 1"}})[0] == 422
    number = post("/create", {})[1]["id"]
    assert post("/reset", {"id": number, "data_idx": 5})[1]["observation"] == "Goal: 5."
    assert post("/step", {"id": number, "action": "add 5"})[1]["reward"] == 1.0
    assert post("/close", {"id": number}) == (200, True)


def test_pages_describe_the_world_its_schemas_and_its_tasks(counting_server: str) -> None:
    def get(path: str) -> Any:
        return requests.get(counting_server + path, timeout=PATIENCE_S).json()

    def tasks(kind: str, **body: Any) -> Any:
        return requests.post(
            f"{counting_server}/counting/{kind}", json=body, timeout=PATIENCE_S
        ).json()

    assert get("/health")["status"] == "healthy"
    assert get("/metadata") == {
        "name": "counting",
        "description": "Reach the goal by `add N`.",
        "version": "1",
    }
    assert get("/schema")["action"]["required"] == ["action"]
    assert get("/schema")["action"]["title"] != "Action"  # clients call tools if it is "Action"
    assert get("/state") == {"episode_id": None, "step_count": 0}
    assert {"/reset", "/step", "/state"} < set(get("/openapi.json")["paths"])
    assert get("/list_environments") == ["counting"]
    assert [split["name"] for split in get("/counting/splits")] == ["train", "validation", "test"]
    assert tasks("num_tasks", split="test") == {"num_tasks": 20}
    assert len(tasks("tasks", split="test")["tasks"]) == 20
    assert tasks("task", split="test", index=1) == {
        "task": {"split": "test", "index": 1, "task": 81, "tag": "tens 8"}
    }
    assert [each["task"] for each in tasks("task_range", split="test", start=18)["tasks"]] == [
        98,
        99,
    ]
    assert tasks("task", split="test", index=20)["error"]["field"] == "index"
    assert tasks("num_tasks", split="none")["error"]["field"] == "split"


def test_a_reset_in_an_empty_list_is_refused() -> None:
    class Empty(Echo):
        lists = dict.fromkeys(SPLITS, range(0))

    client = TestClient(application(Empty(), Options())[0])
    for body in ({}, {"seed": 1}, {"index": 0}):
        assert client.post("/reset", json=body).json()["error"]["type"] == "no_such_task"


def test_the_world_openenv_plays_a_world_of_this_server(
    counting_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_URL", counting_server)
    world = load_world("openenv")
    assert [len(world.tasks(split)) for split in ("train", "validation", "test")] == [60, 20, 20]
    episode = world.create()
    try:
        assert episode.reset(world.tasks("test")[0]) == "Goal: 80."
        assert episode.step("jump").refused
        step = episode.step("add 80")
        assert (step.observation, step.reward, step.done) == ("Count: 80", 1.0, True)
        assert step.refused is False
    finally:
        episode.close()


def test_tools_of_a_world_are_listed_and_called(textcraft: str) -> None:
    tools = {
        tool["name"]: tool["inputSchema"]
        for tool in rpc(textcraft, "tools/list")["result"]["tools"]
    }
    assert set(tools) == {tool.name for tool in load_world("textcraft").tools}
    with opened(textcraft) as socket:
        ask(socket, "reset", split="test", index=0)
        listed = ask(socket, "step", type="list_tools")["data"]["observation"]["tools"]
        assert {tool["name"]: tool["input_schema"] for tool in listed} == tools
        called = ask(socket, "step", type="call_tool", tool_name="inventory", arguments={})["data"]
        assert (called["observation"]["tool_name"], called["metadata"], called["done"]) == (
            "inventory",
            {"refused": False},
            False,
        )
        by_text = ask(socket, "step", action="inventory")["data"]["observation"]["text"]
        assert called["observation"]["result"] == by_text
        refused = ask(socket, "step", type="call_tool", tool_name="none", arguments={})["data"]
        assert (refused["metadata"], refused["reward"]) == ({"refused": True}, 0.0)
        asked = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "inventory"}}
        answered = ask(socket, "mcp", **asked)["data"]
        assert (answered["id"], answered["result"]["data"], answered["result"]["isError"]) == (
            7,
            by_text,
            False,
        )
        assert ask(socket, "state")["data"]["step_count"] == 3
    assert rpc(textcraft, "none")["error"]["code"] == -32601
    assert rpc(textcraft, "tools/call")["error"]["code"] == -32602


def test_tool_session_is_shared_by_requests_and_a_socket(textcraft: str) -> None:
    session = rpc(textcraft, "openenv/session/create")["result"]["session_id"]
    early = rpc(textcraft, "tools/call", session_id=session, name="inventory")
    assert early["error"]["code"] == -32000
    with opened(textcraft, f"?session_id={session}") as socket:
        ask(socket, "reset", split="test", index=0)
        called = rpc(textcraft, "tools/call", session_id=session, name="inventory")
        assert called["result"]["structuredContent"] == {"reward": 0.0, "done": False}
        assert ask(socket, "state")["data"]["step_count"] == 1
    assert (
        rpc(textcraft, "tools/call", session_id=session, name="inventory")["result"]["isError"]
        is False
    )
    assert rpc(textcraft, "openenv/session/close", session_id=session)["result"]["closed"] is True
    assert (
        rpc(textcraft, "tools/call", session_id=session, name="inventory")["error"]["code"]
        == -32000
    )
    with opened(textcraft, "?session_id=none") as socket:
        assert json.loads(socket.recv(PATIENCE_S))["data"]["code"] == "SESSION_ERROR"


def rpc(url: str, method: str, **params: str) -> Any:
    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return requests.post(f"{url}/mcp", json=asked, timeout=PATIENCE_S).json()


@pytest.fixture(scope="module")
def textcraft(state_dir: Path) -> Iterator[str]:
    with starting("textcraft", state_dir) as start:
        yield start().url


def test_a_package_is_written_once_and_names_its_world(tmp_path: Path, textcraft: str) -> None:
    folder = tmp_path / "package"
    assert main(["openenv", "textcraft", str(folder)]) == 0
    manifest = yaml.safe_load((folder / "openenv.yaml").read_text())
    assert (manifest["name"], manifest["validation"]["reward"]["range"]) == (
        "textcraft_env",
        [0, 1],
    )
    assert manifest["validation"]["capabilities"]["declared_task_count"]["test"] == len(
        load_world("textcraft").tasks("test")
    )
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    plan = json.loads((folder / "validation" / "runtime.json").read_text())
    with opened(textcraft) as socket:
        begin = plan["reset"]
        ask(socket, "reset", **begin.pop("options"), **begin)
        *_, last = [ask(socket, "step", **action)["data"] for action in plan["actions"]]
    assert (last["done"], last["reward"]) == (True, 1.0)
    with pytest.raises(SystemExit) as refused:
        main(["openenv", "textcraft", str(folder)])
    assert refused.value.code == 2
