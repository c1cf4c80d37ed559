"""Write an OpenEnv package of a world: manifest, client, server and container file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from environments.environment import SPLITS, NotOfferedError, OracleError, World

MANIFEST = """\
spec_version: 1
name: {package}
version: 0.1.0
description: The environment {name} of AgentGym-RL, served by agentgym-pipeline.
type: space
runtime: fastapi
app: server.app:app
port: 8000
validation:
  reward:
    range: [{low:g}, {high:g}]
    floor_margin: 0.1
  resources:
    cpu: 1.0
    memory_mb: 2048
    disk_mb: 2048
    episode_timeout_s: 300.0
  capabilities:
    verifier:
      kind: reward_channel
    task_api: true
    declared_task_count:
{counts}
  execution:
    dockerfile: server/Dockerfile
  types:
    tags: [text]
"""
PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "openenv-{dashed}"
version = "0.1.0"
description = "Client of the environment {name} on an OpenEnv server."
requires-python = ">=3.11"
dependencies = ["openenv>=0.10"]

[tool.setuptools]
packages = ["{package}"]
package-dir = {{ "{package}" = "." }}
"""
README = """\
# {title}

The environment {name} of AgentGym-RL. An action is a text, and so is an observation.

```python
from {package} import {title}Action, {title}Env

with {title}Env(base_url="http://127.0.0.1:8000").sync() as env:
    result = env.reset(split="train", index=0)
    result = env.step({title}Action(action="..."))
```

The folder `server` needs agentgym-pipeline, which does not install beside OpenEnv. There
`python -m server` serves the world, as `agentgym serve {name}` does. Set
AGENTGYM_ENVIRONMENT_TOKEN first. Clients send it as a bearer token.

The container serves any client, since OpenEnv has no tokens. Publish its port to trusted machines
only. `openenv validate` builds it, and plays the episode in `validation/runtime.json`.
"""
INIT = """\
from .client import {title}Env
from .models import {title}Action, {title}Observation

__all__ = ["{title}Action", "{title}Env", "{title}Observation"]
"""
MODELS = """\
from openenv.core.env_server.types import Action, Observation


class {title}Action(Action):
    action: str


class {title}Observation(Observation):
    text: str
"""
CLIENT = """\
from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import {title}Action, {title}Observation


class {title}Env(EnvClient[{title}Action, {title}Observation, State]):
    def _step_payload(self, action: {title}Action) -> dict[str, Any]:
        return {{"action": action.action}}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[{title}Observation]:
        reward, done = payload["reward"], payload["done"]
        observation = {title}Observation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)
"""
SERVER = """\
import sys

from environments.__main__ import main as environments
from environments.registry import load_world
from environments.server.app import Options, application
from environments.token import token_here


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(name)
    return application(load_world("{name}"), Options(token=token_here()))[0]


def main() -> None:
    sys.exit(environments(["serve", "{name}", "--host", "0.0.0.0", "--port", "8000", *sys.argv[1:]]))
"""
CONTAINER = """\
# `make images` in the repository of agentgym-pipeline builds the base image.
ARG BASE_IMAGE=agentgym-env-{image}
FROM ${{BASE_IMAGE}}
CMD ["{name}", "--no-token"]
"""
FILES = {
    "openenv.yaml": MANIFEST,
    "pyproject.toml": PROJECT,
    "README.md": README,
    "__init__.py": INIT,
    "models.py": MODELS,
    "client.py": CLIENT,
    "server/__init__.py": "",
    "server/__main__.py": "from .app import main\n\nmain()\n",
    "server/app.py": SERVER,
    "server/Dockerfile": CONTAINER,
}
MOST_ACTIONS = 100
"""Most actions of a plan that `openenv validate` plays."""


def write_package(name: str, world: World, image: str, folder: Path) -> None:
    """Write the package of a world into a new folder.

    Args:
        name: What `agentgym serve` calls the world.
        image: Image of its server, without the common prefix.
        folder: Where to write.

    Raises:
        FileExistsError: The folder exists.
    """
    words = re.findall(r"[a-z0-9]+", world.name.lower())
    low, high = world.reward_range
    counts = "\n".join(f"      {split}: {len(world.tasks(split))}" for split in SPLITS)
    values = {
        "name": name,
        "package": "_".join([*words, "env"]),
        "dashed": "-".join(words),
        "title": "".join(map(str.capitalize, words)),
        "low": low,
        "high": high,
        "counts": counts,
        "image": image,
    }
    plan = {
        "plan_schema_version": "1",
        "reset": {"episode_id": "expert", "seed": 0, "options": {"split": SPLITS[0]}},
        "actions": [{"action": text} for text in _expert_actions(world, world.tasks(SPLITS[0])[0])],
    }
    folder.mkdir(parents=True)
    for part in ("server", "validation"):
        (folder / part).mkdir()
    for path, text in FILES.items():
        (folder / path).write_text(text.format(**values), encoding="utf-8")
    (folder / "validation" / "runtime.json").write_text(json.dumps(plan, indent=1) + "\n", "utf-8")


def _expert_actions(world: World, task: int) -> list[str]:
    """Return the oracle's first actions in a task. Without an oracle, one text that says so."""
    actions = list[str]()
    session = world.create()
    try:
        session.reset(task)
        while len(actions) < MOST_ACTIONS:
            actions.append(session.oracle_action())
            if session.step(actions[-1]).done:
                break
    except (NotOfferedError, OracleError):
        return actions or ["This world has no expert."]
    finally:
        session.close()
    return actions
