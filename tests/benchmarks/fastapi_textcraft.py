"""TextCraft in AgentGym's dialect, served as FastAPI's documentation teaches: threads, models of pydantic. What ours is compared with.

AgentGym's own server is on no package index, so it cannot be run beside ours; by its published code
it is built like this one, and its
figures on a quiet machine are in tests/benchmarks/textcraft.py. Run: python -m
tests.benchmarks.fastapi_textcraft PORT
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from environments.textcraft.world import TextCraft, TextCraftEnvironment


class Reset(BaseModel):
    id: int
    data_idx: int = 0


class Step(BaseModel):
    id: int
    action: str


class Close(BaseModel):
    id: int


app = FastAPI()
world = TextCraft()
numbers = itertools.count()
sessions: dict[int, TextCraftEnvironment] = {}


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/create")
def create() -> dict[str, Any]:
    number = next(numbers)
    sessions[number] = world.create()
    return {"id": number, "observation": sessions[number].reset(0), "done": False, "reward": 0}


@app.post("/reset")
def reset(body: Reset) -> dict[str, Any]:
    return {
        "id": body.id,
        "observation": sessions[body.id].reset(body.data_idx),
        "done": False,
        "reward": 0,
    }


@app.post("/step")
def step(body: Step) -> dict[str, Any]:
    step = sessions[body.id].step(body.action)
    return {"observation": step.observation, "reward": step.reward, "done": step.done}


@app.post("/close")
def close(body: Close) -> bool:
    sessions.pop(body.id).close()
    return True


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
