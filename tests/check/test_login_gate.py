"""The login in front of Prefect, MLflow and the viewer: who passes, and how wrong logins are slowed down."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from tasks.provision.login_gate import (
    FREE_GUESSES,
    LONGEST_PAUSE_S,
    LoginGate,
    WrongLogins,
    no_frames,
)
from tasks.provision.mlflow_app import own_origin_only
from tests.support.viewer_login import basic

LOGIN = "agentgym:secret"
NOBODY = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as another user")


def gate(*, app_checks_login: bool = False) -> LoginGate:
    return LoginGate(
        PlainTextResponse("records"), LOGIN, "the test", app_checks_login=app_checks_login
    )


def client(app: LoginGate, address: str) -> TestClient:
    return TestClient(app, client=(address, 40_000))


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/2.0/mlflow/experiments/search", basic(LOGIN), 200),
        (
            "/api/2.0/mlflow/experiments/search",
            {**basic(LOGIN), "Origin": "http://testserver"},
            200,
        ),
        ("/health", {}, 200),
        ("/", {}, 401),
        ("/healthy", {}, 401),
        ("/api/2.0/mlflow/experiments/search", basic("agentgym:wrong"), 401),
        ("/api/2.0/mlflow/experiments/search", {"Authorization": "Basic ???"}, 401),
        ("/api/2.0/mlflow/experiments/search", {"Authorization": f"Bearer {LOGIN}"}, 401),
        (
            "/api/2.0/mlflow/experiments/create",
            {**basic(LOGIN), "Origin": "http://127.0.0.1:8888"},
            403,
        ),
        (
            "/api/2.0/mlflow/experiments/create",
            {**basic(LOGIN), "Origin": "https://stranger.example"},
            403,
        ),
        ("/api/2.0/mlflow/experiments/create", {**basic(LOGIN), "Origin": "null"}, 403),
    ],
)
def test_only_the_login_and_same_origin_pages_pass(
    path: str, headers: dict[str, str], status: int
) -> None:
    answer = TestClient(own_origin_only(gate())).get(path, headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("www-authenticate", "").startswith("Basic ") == (status == 401)


@pytest.mark.parametrize("app_checks_login", [False, True])
def test_wrong_logins_delay_only_their_own_client(app_checks_login: bool) -> None:
    app = gate(app_checks_login=app_checks_login)
    guesser, user = client(app, "203.0.113.1"), client(app, "203.0.113.2")
    statuses = [
        guesser.get("/", headers=basic(f"agentgym:{guess}")).status_code
        for guess in range(FREE_GUESSES + 3)
    ]
    looked_at = 200 if app_checks_login else 401
    assert statuses == [looked_at] * (FREE_GUESSES + 1) + [429, 429]
    refused = guesser.get("/", headers=basic(LOGIN))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert user.get("/", headers=basic(LOGIN)).status_code == 200


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    app = gate()
    for guess in range(FREE_GUESSES + 1):
        client(app, f"2001:db8::{guess:x}").get("/", headers=basic("agentgym:wrong"))
    assert client(app, "2001:db8::ffff").get("/", headers=basic(LOGIN)).status_code == 429
    assert client(app, "2001:db8:1::1").get("/", headers=basic(LOGIN)).status_code == 200


def test_pause_doubles_up_to_a_limit_and_a_login_resets_it() -> None:
    now = 0.0
    wrong = WrongLogins(lambda: now)
    pauses = []
    for _ in range(FREE_GUESSES + 12):
        wrong.add("a")
        pauses.append(wrong.pause_s("a"))
        now += pauses[-1]
    assert pauses[:FREE_GUESSES] == [0.0] * FREE_GUESSES
    assert pauses[FREE_GUESSES : FREE_GUESSES + 3] == [2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    wrong.forget("a")
    wrong.add("a")
    assert wrong.pause_s("a") == 0.0


def test_the_table_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.provision.login_gate.MOST_CLIENTS", 10)
    wrong = WrongLogins()
    for number in range(100):
        wrong.add(str(number))
    assert len(wrong._clients) == 10


def test_websocket_logins_are_delayed_too() -> None:
    async def events(websocket: WebSocket) -> None:
        await websocket.accept()
        message = await websocket.receive_json()
        await websocket.send_json(
            {"type": "auth_success" if message["token"] == LOGIN else "refused"}
        )

    app = LoginGate(
        Starlette(routes=[WebSocketRoute("/api/events", events)]),
        LOGIN,
        "the test",
        app_checks_login=True,
    )

    def log_in(address: str, token: str) -> str:
        with client(app, address).websocket_connect("/api/events") as websocket:
            websocket.send_text(json.dumps({"type": "auth", "token": token}))
            return str(websocket.receive_json()["type"])

    assert [log_in("203.0.113.1", "wrong") for _ in range(FREE_GUESSES + 1)] == ["refused"] * (
        FREE_GUESSES + 1
    )
    with pytest.raises(WebSocketDisconnect):
        log_in("203.0.113.1", LOGIN)
    assert log_in("203.0.113.2", LOGIN) == "auth_success"


def test_pages_forbid_frames() -> None:
    headers = TestClient(no_frames(PlainTextResponse("page"))).get("/").headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a real server behind the login."""
    app = LoginGate(
        Starlette(routes=[Route("/", lambda _: PlainTextResponse("records"))]), LOGIN, "the test"
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", proxy_headers=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield int(listening.getsockname()[1])
        server.should_exit = True
        thread.join()


def statuses(port: int, logins: list[str]) -> list[int]:
    found = []
    for each in logins:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(
                "GET", "/", headers={**basic(each), "X-Forwarded-For": "203.0.113.9"}
            )
            found.append(connection.getresponse().status)
    return found


def _as_user(
    uid: int, port: int, logins: list[str], results: multiprocessing.SimpleQueue[list[int]]
) -> None:
    os.setuid(uid)
    results.put(statuses(port, logins))


@as_root
def test_wrong_logins_of_another_unix_user_do_not_lock_out_the_owner(port: int) -> None:
    fork = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[list[int]] = fork.SimpleQueue()
    guesses = ["agentgym:wrong"] * (FREE_GUESSES + 2)
    process = fork.Process(target=_as_user, args=(NOBODY, port, [*guesses, LOGIN], results))
    process.start()
    assert results.get() == [401] * (FREE_GUESSES + 1) + [429, 429]
    process.join()
    assert statuses(port, [LOGIN]) == [200]


def test_own_user_is_delayed_but_passes_with_the_correct_login(port: int) -> None:
    assert statuses(port, ["agentgym:wrong"] * (FREE_GUESSES + 2)) == [401] * (FREE_GUESSES + 1) + [
        429
    ]
    assert statuses(port, [LOGIN]) == [200]
