"""A world on an OpenEnv server. One WebSocket there is one session."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from environments.environment import (
    Environment,
    EpisodeOverError,
    InvalidActionError,
    SettingsError,
    Step,
    TaskIndexError,
    World,
    WorldBusyError,
    WorldError,
)
from environments.openenv.actions import ActionForm, form_of, text_of
from environments.openenv.settings import Settings, read_settings
from environments.protocol import in_range
from environments.tools import Tool

ANSWER_S = 300.0
"""Seconds to wait for an answer. The episode's client has another deadline."""
MAX_MESSAGE = 100 * 2**20
"""Largest message in bytes, as in OpenEnv's own client."""
SPLITS = ("train", "validation", "test")
NO_TASK_API = (404, 405, 501)
"""Statuses of a server whose environment has no task API."""


class OpenEnvError(WorldError):
    """The OpenEnv server failed or broke its protocol.

    Attributes:
        code: The protocol's code, e.g. "EXECUTION_ERROR". Empty: no answer.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class OpenEnvironment(Environment):
    """One session.

    The episode ends if an answer is lost, because the protocol has no turn numbers.
    """

    def __init__(
        self,
        settings: Settings,
        form: ActionForm,
        resets: Sequence[Mapping[str, Any]],
        served: Mapping[str, Any],
    ) -> None:
        """
        Args:
            form: The form of the actions.
            resets: Arguments of the reset of each task.
            served: What the server must still serve, see `_served`.
        """
        self._settings, self._form, self._resets, self._served = settings, form, resets, served
        self._socket: ClientConnection | None = None
        self._over = True

    def reset(self, index: int) -> str:
        """Start task `index`. See `Environment.reset`.

        Raises:
            WorldBusyError: All sessions of the server are in use.
            OpenEnvError: The server failed, was replaced by another version, or ended the task at
                its reset.
        """
        if not 0 <= index < len(self._resets):
            raise TaskIndexError(
                f"openenv has no task {index}; its tasks are 0 to {len(self._resets) - 1}"
            )
        self._over, is_new = True, self._socket is None
        begun = self._ask("reset", {**self._resets[index], **self._settings.reset})
        if is_new:
            self._check_served()
        if begun["done"]:
            raise OpenEnvError(f"task {index} of {self._settings.url} is over after its reset")
        self._over = False
        return text_of(begun["observation"])

    def step(self, action: str) -> Step:
        """Perform one action. See `Environment.step`.

        An action in a wrong form is refused here. An action with invalid values is refused by the
        server, and its explanation is the observation.

        Raises:
            OpenEnvError: The server failed, or the answer was lost.
        """
        if self._over:
            raise EpisodeOverError("no episode is in progress; reset first")
        try:
            stepped = self._ask("step", self._form.data(action))
        except InvalidActionError as refused:
            return Step(str(refused), 0.0, False, refused=True)
        except OpenEnvError as fault:
            if fault.code == "VALIDATION_ERROR":
                return Step(str(fault), 0.0, False, refused=True)
            raise
        reward, rewards = float(stepped["reward"] or 0.0), self._settings.rewards
        if not in_range(reward, rewards):
            raise OpenEnvError(
                f"{self._settings.url} sent the reward {reward:g}, but rewards are from "
                f"{rewards[0]:g} to {rewards[1]:g}. Set OPENENV_REWARDS to the range of its rewards"
            )
        self._over = bool(stepped["done"])
        # OpenEnv does not define `refused`. Servers of this project report it.
        told = (stepped.get("metadata") or {}).get("refused")
        known = told if isinstance(told, bool) else None
        return Step(text_of(stepped["observation"]), reward, self._over, known)

    def close(self) -> None:
        """End the session on the server. See `Environment.close`."""
        self._over = True
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a message and return the observation that answers it."""
        try:
            if self._socket is None:
                self._socket = _connect(self._settings)
            with suppress(ConnectionClosed):  # a full server reports it and closes immediately
                self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(ANSWER_S))
        except (OSError, TimeoutError, WebSocketException, ValueError) as fault:
            self.close()
            raise OpenEnvError(f"{self._settings.url} did not answer: {fault}") from fault
        if not isinstance(answer, dict) or not isinstance(found := answer.get("data"), dict):
            self.close()
            raise OpenEnvError(f"{self._settings.url} sent an unknown answer: {str(answer)[:200]}")
        if answer.get("type") == "error":
            self._fail(found)
        if not {"observation", "reward", "done"} <= set(found):
            self.close()
            raise OpenEnvError(
                f"{self._settings.url} answered a {kind} by {answer.get('type')!r} without "
                "observation, reward and done"
            )
        return found

    def _check_served(self) -> None:
        """Check that the server has not been replaced by another version."""
        now = _served(self._settings)
        changed = [name for name, value in self._served.items() if now[name] != value]
        if changed:
            self.close()
            values = "; ".join(
                f"{name}: {self._served[name]} before, {now[name]} now" for name in changed
            )
            raise OpenEnvError(
                f"{self._settings.url} was replaced ({values[:300]}). Restart the environment "
                "server of this project"
            )

    def _fail(self, error: Mapping[str, Any]) -> None:
        code, message = str(error.get("code")), str(error.get("message"))
        if code == "VALIDATION_ERROR":
            raise OpenEnvError(
                "\n".join([message, *(str(each.get("msg")) for each in error.get("errors", ()))]),
                code,
            )
        self.close()
        if code == "CAPACITY_REACHED":
            raise WorldBusyError(f"all sessions of {self._settings.url} are in use: {message}")
        raise OpenEnvError(f"{self._settings.url}: {code}: {message}", code)


class OpenEnv(World):
    """The world that the server of OPENENV_URL hosts.

    The tasks are those of its task API, or seeds: 80 % of the seeds are for training, 10 % for
    validation and 10 % for tests.
    """

    name = "openenv"
    blocking = True

    def __init__(self) -> None:
        """
        Raises:
            SettingsError: An environment variable is missing or has an invalid value, or
                OPENENV_RESET sets an argument that chooses the task.
            OpenEnvError: The server does not answer or does not speak OpenEnv's protocol.
        """
        self._settings = settings = read_settings()
        self.reward_range = settings.rewards
        self._served = served = _served(settings)
        metadata = _read(settings, "/metadata")
        tools = _tools(settings)
        self._form = form_of(served["schema"]["action"], tools)
        self._tools = [_tool(each) for each in tools]
        found = _tasks_by_api(settings)
        self._resets, self._lists = found if found is not None else _seeds(settings.seeds)
        if choosing := [name for name in settings.reset if any(name in r for r in self._resets)]:
            raise SettingsError(
                "OPENENV_RESET",
                f"sets {', '.join(choosing)}, by which tasks are chosen, so all tasks would be the "
                "same; remove it",
            )
        self.instruction = f"{metadata['description']}\n{self._form.described}"
        content = [
            metadata["name"],
            served["version"],
            served["schema"],
            self.instruction,
            self._resets,
            dict(settings.reset),
            settings.rewards,
        ]
        self.version = f"{metadata['name']}-{served['version']}-{sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]}"

    @property
    def lists(self) -> Mapping[str, Sequence[int]]:
        """The server's splits by name, and "train", "validation" and "test". See `World.lists`."""
        return self._lists

    @property
    def tools(self) -> Sequence[Tool]:
        """The server's MCP tools. See `World.tools`."""
        return self._tools or super().tools

    def create(self) -> OpenEnvironment:
        """Return a new session. See `World.create`."""
        return OpenEnvironment(self._settings, self._form, self._resets, self._served)


def _served(settings: Settings) -> dict[str, Any]:
    """Return the version and the schemas that the server reports."""
    version = _read(settings, "/openapi.json")["info"]["version"]
    return {"version": version, "schema": _read(settings, "/schema")}


Resets = list[dict[str, Any]]
Lists = dict[str, range]


def _seeds(n: int) -> tuple[Resets, Lists]:
    validation, test = n - 2 * max(1, n // 10), n - max(1, n // 10)
    return [{"seed": seed} for seed in range(n)], {
        "train": range(validation),
        "validation": range(validation, test),
        "test": range(test, n),
    }


def _tasks_by_api(settings: Settings) -> tuple[Resets, Lists] | None:
    """Return the tasks of the server's task API. None: it has none."""
    try:
        (environment,) = _read(settings, "/list_environments")
        splits = _read(settings, f"/{environment}/splits")
    except OpenEnvError as fault:
        if fault.code in map(str, NO_TASK_API):
            return None
        raise
    resets: Resets = []
    lists: Lists = {}
    for split in splits:
        n = int(_read(settings, f"/{environment}/num_tasks", {"split": split["name"]})["num_tasks"])
        lists[split["name"]] = range(len(resets), len(resets) + n)
        if split["type"] in SPLITS:
            lists.setdefault(split["type"], lists[split["name"]])
        resets += [{"split": split["name"], "index": index} for index in range(n)]
    for name in SPLITS:
        lists.setdefault(name, range(0))
    return resets, lists


def _tool(tool: Mapping[str, Any]) -> Tool:
    """Return an MCP tool whose action text is the call itself."""
    schema = tool.get("inputSchema") or tool.get("input_schema") or {}
    return Tool(
        str(tool["name"]), str(tool.get("description") or ""), dict(schema.get("properties", {}))
    )


def _tools(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Return the server's MCP tools. Empty: its actions are not tool calls."""
    request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
    try:
        answer = _read(settings, "/mcp", request)
    except OpenEnvError as fault:
        if fault.code in map(str, NO_TASK_API):
            return ()
        raise
    return (answer.get("result") or {}).get("tools") or ()


def _connect(settings: Settings) -> ClientConnection:
    address = "ws" + settings.url.removeprefix("http") + "/ws"
    return connect(
        address,
        additional_headers=_headers(settings),
        max_size=MAX_MESSAGE,
        open_timeout=30,
        proxy=None,  # it would get the token
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect. The other server would get the token."""

    def redirect_request(self, *_: Any) -> None: ...


# Without the proxies of the environment variables, which would get the token, too.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def _headers(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.token}"} if settings.token else {}


def _read(settings: Settings, path: str, body: Any = None) -> Any:
    """Return the JSON that the server answers to a GET, or to a POST of `body`.

    Raises:
        OpenEnvError: It does not answer. The code is the HTTP status, if there is one.
    """
    content = None if body is None else json.dumps(body).encode()
    headers = {**_headers(settings), "Content-Type": "application/json"}
    request = urllib.request.Request(settings.url + path, content, headers)
    try:
        with _HTTP.open(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as fault:
        raise OpenEnvError(
            f"OPENENV_URL: {settings.url}{path} answered {fault.code}", str(fault.code)
        ) from fault
    except (OSError, ValueError) as fault:
        raise OpenEnvError(f"OPENENV_URL: {settings.url}{path} did not answer: {fault}") from fault
