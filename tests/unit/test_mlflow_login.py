from __future__ import annotations

import base64

import pytest
from starlette.responses import PlainTextResponse

from tasks.provision.mlflow_app import LoginRequired

LOGIN = "agentgym:secret"


def basic(login: str) -> bytes:
    return b"Basic " + base64.b64encode(login.encode())


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/2.0/mlflow/experiments/search", {b"authorization": basic(LOGIN)}, None),
        ("/api/2.0/mlflow/experiments/search", {b"authorization": basic(LOGIN), b"origin": b"http://127.0.0.1:5000"}, None),
        ("/health", {}, None),
        ("/", {}, 401),
        ("/health/../api/2.0/mlflow/experiments/search", {}, 401),
        ("/api/2.0/mlflow/experiments/search", {b"authorization": basic("agentgym:wrong")}, 401),
        ("/api/2.0/mlflow/experiments/search", {b"authorization": basic(LOGIN).lower()}, 401),
        ("/api/2.0/mlflow/experiments/create", {b"authorization": basic(LOGIN), b"origin": b"http://127.0.0.1:8888"}, 403),
        ("/api/2.0/mlflow/experiments/create", {b"authorization": basic(LOGIN), b"origin": b"https://stranger.example"}, 403),
        ("/api/2.0/mlflow/experiments/create", {b"authorization": basic(LOGIN), b"origin": b"null"}, 403),
    ],
)
def test_only_the_login_and_the_servers_own_pages_pass(path: str, headers: dict[bytes, bytes], status: int | None) -> None:
    guarded = LoginRequired(PlainTextResponse("records"), LOGIN)
    refusal = guarded.refusal(path, {b"host": b"127.0.0.1:5000", **headers})
    assert (None if refusal is None else refusal.status_code) == status
