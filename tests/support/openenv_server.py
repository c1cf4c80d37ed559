"""A small environment server in OpenEnv's protocol: add numbers until the sum is the goal.

It implements the protocol without OpenEnv's package, which conflicts with this project's packages.
Start it with `python -m tests.support.openenv_server PORT SESSIONS`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

GOALS = {"train": [3, 4, 5, 6], "test": [7, 8]}
OVER = 8
"""The task with this goal is over after its reset."""
ACTION = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "number": {"type": "integer"}},
    "required": ["number"],
}


class Adding:
    """The server's sessions.

    Attributes:
        free: Number of sessions that can still be opened.
    """

    def __init__(self, sessions: int) -> None:
        self.free = sessions

    async def play(self, socket: WebSocket) -> None:
        """Serve a session.

        A step with the number 13 ends it without a response, and 14 has a reward of -0.1.
        """
        await socket.accept()
        if not self.free:
            await self._fail(socket, "CAPACITY_REACHED", "full")
            await socket.close()
            return
        self.free -= 1
        goal = total = 0
        try:
            while True:
                message = json.loads(await socket.receive_text())
                data = message["data"]
                if message["type"] == "reset":
                    goal, total = GOALS[data["split"]][data["index"]], 0
                    await self._answer(socket, f"Reach {goal}.", None, done=goal == OVER)
                elif data["number"] < 0:
                    await self._fail(
                        socket,
                        "VALIDATION_ERROR",
                        "Invalid message",
                        errors=[{"msg": "number is negative"}],
                    )
                elif data["number"] == 13:
                    break
                elif data["number"] == 14:
                    await self._answer(socket, "", -0.1, done=False)
                else:
                    total += data["number"]
                    await self._answer(
                        socket, f"{total} of {goal}", float(total == goal), total >= goal
                    )
        except WebSocketDisconnect:
            return
        finally:
            self.free += 1
        await socket.close()

    async def _answer(self, socket: WebSocket, text: str, reward: float | None, done: bool) -> None:
        data = {"observation": {"text": text, "metadata": {}}, "reward": reward, "done": done}
        await socket.send_text(json.dumps({"type": "observation", "data": data}))

    async def _fail(self, socket: WebSocket, code: str, message: str, **more: Any) -> None:
        await socket.send_text(
            json.dumps({"type": "error", "data": {"code": code, "message": message, **more}})
        )


def application(sessions: int, version: str = "1.2") -> Starlette:
    """Return the server's application."""

    def fixed(content: Any) -> Any:
        return lambda _: JSONResponse(content)

    async def count(request: Request) -> Response:
        return JSONResponse({"num_tasks": len(GOALS[(await request.json())["split"]])})

    return Starlette(
        routes=[
            Route("/health", fixed({"status": "healthy"})),
            Route("/metadata", fixed({"name": "adding", "description": "Add numbers."})),
            Route("/schema", fixed({"action": ACTION, "observation": {}, "state": {}})),
            Route("/openapi.json", fixed({"info": {"version": version}})),
            Route("/list_environments", fixed(["adding"])),
            Route("/adding/splits", fixed([{"name": name, "type": name} for name in GOALS])),
            Route("/adding/num_tasks", count, methods=["POST"]),
            WebSocketRoute("/ws", Adding(sessions).play),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(
        application(int(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning"
    )
