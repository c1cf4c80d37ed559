"""A FastAPI server of TextCraft in AgentGym's dialect, as the baseline of the benchmark.

It follows FastAPI's documentation, with threads and pydantic models. AgentGym's own server is on no
package index, but its published code has the same structure. Its recorded performance on an idle
machine is in tests/benchmarks/textcraft.py. Start it with
`python -m tests.benchmarks.fastapi_textcraft PORT`.
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
