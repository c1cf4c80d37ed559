"""Plain HTTP requests to an environment server, without the environment client."""

from __future__ import annotations

from typing import Any

import requests

PATIENCE_S = 60.0


def post(url: str, operation: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    return requests.post(
        f"{url}/v1/{operation}", json={"items": list(items)}, timeout=PATIENCE_S
    ).json()["items"]


def start(url: str, index: int = 50, **fields: Any) -> str:
    [reply] = post(url, "create", {"index": index, **fields})
    assert reply["status"] == 200
    return reply["session"]


def open_sessions(url: str) -> int:
    return requests.get(f"{url}/health", timeout=PATIENCE_S).json()["sessions"]


class AgentGymClient:
    """A client that sends the same requests as AgentGym's TextCraft client."""

    def __init__(self, url: str) -> None:
        self.url = url
        response = requests.post(
            f"{url}/create",
            json={"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None},
            timeout=PATIENCE_S,
        )
        assert response.status_code == 200
        self.id = response.json()["id"]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        body["id"] = self.id
        response = requests.post(f"{self.url}/{path}", json=body, timeout=PATIENCE_S)
        assert response.status_code == 200
        return response.json()

    def observe(self) -> str:
        response = requests.get(f"{self.url}/observation?id={self.id}", timeout=PATIENCE_S)
        assert response.status_code == 200
        return response.json()

    def reset(self, index: int) -> tuple[str, float, bool]:
        reply = self._post("reset", {"data_idx": index})
        assert reply["id"] == self.id
        return reply["observation"], reply["reward"], reply["done"]

    def step(self, action: str) -> tuple[str, float, bool]:
        reply = self._post("step", {"action": action})
        return reply["observation"], reply["reward"], reply["done"]

    def close(self) -> Any:
        return self._post("close", {})
