"""A server that implements only AgentGym's dialect.

    python tests/support/agentgym_only_server.py textcraft --port 8000

It behaves like AgentGym's own servers: ids count from 0, errors have status 200, and sessions never
expire. The worlds are this project's, under AgentGym's rules.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvicorn
from fastapi import Body, FastAPI

from environments.environment import Environment
from environments.registry import load_world

GREETINGS = {"textcraft": "This is environment TextCraft.", "babyai": "This is environment BabyAI."}


def build_app(name: str) -> FastAPI:
    """Return the application that serves a world of `GREETINGS`."""
    world, app, numbers = load_world(name, "agentgym"), FastAPI(), itertools.count()
    sessions: dict[int, Environment] = {}
    scores: dict[int, float] = {}

    def begin(number: int, index: int) -> dict[str, Any]:
        try:
            scores[number] = 0.0
            seen = sessions[number].reset(index)
        except Exception as fault:  # noqa: BLE001 - as AgentGym's servers do
            return {"error": str(fault)}
        if name == "textcraft":
            return {"id": number, "observation": seen, "done": False, "reward": 0}
        return {"observation": seen, "reward": 0, "score": 0, "deleted": False, "done": False}

    @app.get("/")
    def greet() -> str:
        return GREETINGS[name]

    @app.post("/create")
    def create() -> dict[str, Any]:
        number = next(numbers)
        sessions[number] = world.create()
        return {**begin(number, number), "id": number} if name == "textcraft" else {"id": number}

    @app.post("/reset")
    def reset(id: int = Body(), data_idx: int = Body(0)) -> dict[str, Any]:
        return begin(id, data_idx)

    @app.post("/step")
    def step(id: int = Body(), action: str = Body()) -> dict[str, Any]:
        try:
            answer = sessions[id].step(action)
        except Exception as fault:  # noqa: BLE001 - as AgentGym's servers do
            return {"error": str(fault)}
        scores[id] += answer.reward
        reply = {"observation": answer.observation, "reward": answer.reward, "done": answer.done}
        return reply if name == "textcraft" else {**reply, "score": scores[id]}

    @app.get("/open")
    def count() -> int:
        """Return the number of open sessions. Only the tests call this."""
        return len(sessions)

    @app.post("/close")
    def close(id: int = Body(embed=True)) -> bool:
        return sessions.pop(id, None) is not None

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("world", choices=GREETINGS)
    parser.add_argument("--port", type=int, required=True)
    parsed = parser.parse_args()
    uvicorn.run(build_app(parsed.world), host="127.0.0.1", port=parsed.port, log_level="error")
