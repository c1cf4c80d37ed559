"""Tests of AgentGym's dialect as its clients use it: each request on a new connection."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from tests.support.server_requests import PATIENCE_S, AgentGymClient


def test_a_client_written_for_agentgym_plays_an_episode(counting_server: str) -> None:
    assert requests.get(counting_server, timeout=PATIENCE_S).status_code == 200
    client = AgentGymClient(counting_server)
    assert isinstance(client.id, int)
    assert client.observe() == "Goal: 0."
    assert client.reset(203) == ("Goal: 3.", 0, False)  # modulo the number of tasks
    assert client.step("add 2") == ("Count: 2", 0.0, False)
    assert client.step("add 0") == client.step("add 0")  # without turn numbers, each call is a step
    assert client.step("add 1") == ("Count: 3", 1.0, True)
    assert client.observe() == "Count: 3"
    assert requests.get(f"{counting_server}/goal?id={client.id}", timeout=PATIENCE_S).json() == "3"
    detail = requests.get(f"{counting_server}/detail?id={client.id}", timeout=PATIENCE_S).json()
    assert detail == {"observation": "Count: 3", "reward": 1.0, "done": True, "deleted": False}
    assert client.close() is True


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", {"action": "add 1", "id": -1}, 404),
        ("/step", {"action": "add 1", "id": 10**30}, 422),
        ("/step", {"action": "add 1"}, 422),
        ("/step", {"action": 5, "id": 1}, 422),
        ("/create", {"goal": "diamond"}, 422),
        ("/reset", {"id": "x", "data_idx": 1}, 422),
    ],
)
def test_agentgym_errors_have_a_status_and_an_error_field(
    counting_server: str, path: str, body: dict[str, Any], status: int
) -> None:
    response = requests.post(counting_server + path, json=body, timeout=PATIENCE_S)
    assert response.status_code == status
    assert response.json()["error"]
    assert ("detail" in response.json()) == (status == 422)


def test_agentgym_sessions_end(counting_server: str) -> None:
    client = AgentGymClient(counting_server)
    client.close()
    response = requests.post(
        f"{counting_server}/step", json={"action": "add 1", "id": client.id}, timeout=PATIENCE_S
    )
    assert response.status_code == 410
    assert (
        requests.get(f"{counting_server}/observation?id=abc", timeout=PATIENCE_S).status_code == 422
    )
