"""Tests of the login in front of MLflow and the viewer."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from tasks.provision.login_gate import LoginGate, no_frames
from tasks.provision.mlflow_app import own_origin_only
from tests.support.viewer_login import basic

LOGIN = "agentgym:secret"


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
    answer = TestClient(
        own_origin_only(LoginGate(PlainTextResponse("records"), LOGIN, "the test"))
    ).get(path, headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("www-authenticate", "").startswith("Basic ") == (status == 401)


def test_pages_forbid_frames() -> None:
    headers = TestClient(no_frames(PlainTextResponse("page"))).get("/").headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
