"""Tests of the environment server with random requests: it answers without a fault."""

from __future__ import annotations

import http.client
import json
import random
from typing import Any
from urllib.parse import urlsplit

import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.server_requests import PATIENCE_S, start


class Connection:
    """A connection that is kept open, as fuzzing needs thousands of requests."""

    def __init__(self, url: str) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        self._http.request("POST", path, body)
        response = self._http.getresponse()
        return response.status, response.read()


PATHS = ["/v1/create", "/v1/reset", "/v1/step", "/v1/close", "/create", "/reset", "/step", "/close"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.integers(min_value=2**63)
)
KEYS = st.sampled_from(
    ["session", "turn", "action", "index", "lease_s", "id", "data_idx", "items", "goal"]
) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(path=st.sampled_from(PATHS), value=VALUES, wrapped=st.booleans())
def test_any_json_is_answered_without_a_server_fault(
    counting_server: str, path: str, value: Any, wrapped: bool
) -> None:
    body = json.dumps({"items": [value]} if wrapped else value).encode()
    status, answer = _connection(counting_server).post(path, body)
    assert status < 500, answer
    json.loads(answer)


def test_thousands_of_random_bodies_get_no_server_fault(counting_server: str) -> None:
    rng = random.Random(1)
    session = start(counting_server)
    number = requests.post(f"{counting_server}/create", json={}, timeout=PATIENCE_S).json()["id"]
    valid = [
        json.dumps({"items": [{"session": session, "turn": 0, "action": "add 1"}]}).encode(),
        json.dumps({"action": "add 1", "id": number}).encode(),
        json.dumps({"data_idx": 3, "id": number}).encode(),
    ]
    connection = _connection(counting_server)
    for _ in range(3000):
        body = bytearray(rng.choice(valid))
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        if rng.random() < 0.1:
            body = bytearray(rng.randbytes(rng.randrange(200)))
        status, answer = connection.post(rng.choice(PATHS), bytes(body))
        assert status < 500, (body, answer)
    assert requests.get(f"{counting_server}/health", timeout=PATIENCE_S).status_code == 200


_connections: dict[str, Connection] = {}


def _connection(url: str) -> Connection:
    return _connections.setdefault(url, Connection(url))
