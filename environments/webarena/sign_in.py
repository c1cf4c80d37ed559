"""Accounts that are signed in at the start of an episode."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from environments.environment import WorldError
from environments.webarena.addresses import EMBEDDED, Addresses
from environments.webarena.sites import gate
from environments.webarena.sites.database import ACCOUNTS
from environments.webarena.sites.pages import LOGIN_COOKIE
from environments.webarena.task_files import TaskFile


class LoginMissingError(WorldError):
    """The file with an account's cookies is missing or unreadable."""


def storage_states(folder: Path, tasks: Iterable[TaskFile]) -> dict[str | None, dict[str, Any]]:
    """Return the cookies of accounts on real sites that the tasks name, by file name.

    They are storage states of Playwright.

    Raises:
        LoginMissingError: A file is missing or is not a storage state.
    """
    states: dict[str | None, dict[str, Any]] = {}
    for task in tasks:
        if task.storage_state is not None and task.storage_state not in states:
            states[task.storage_state] = _read(folder / task.storage_state, task)
    return states


def _read(path: Path, task: TaskFile) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text("utf-8"))
        if not isinstance(state, dict) or not isinstance(state.get("cookies"), list):
            raise ValueError('it has no list "cookies"')
    except (OSError, ValueError) as fault:
        message = f"task {task.index} needs the login cookies in {path} (Playwright's storage state): {fault}"
        raise LoginMissingError(
            f"{message}; write them there, or set WEBARENA_LOGINS to the parent of .auth"
        ) from fault
    return state


def embedded_cookies(episode: gate.Episode, task: TaskFile) -> list[dict[str, str]]:
    """Return the cookies of an episode on the embedded sites.

    One identifies the episode on each of its hosts. The others sign in on the sites that the login
    file's name lists.
    """
    cookies = [
        {"name": gate.EPISODE_COOKIE, "value": episode.token, "url": f"http://{host}/"}
        for host in sorted(episode.hosts)
    ]
    if task.storage_state is not None:
        names: Collection[str] = Path(task.storage_state).stem.removesuffix("_state").split(".")
        addresses = Addresses(EMBEDDED)
        cookies += [
            {
                "name": LOGIN_COOKIE,
                "value": ACCOUNTS[name],
                "url": f"http://{addresses.hosts((name,))[0]}/",
            }
            for name in names
            if name in ACCOUNTS
        ]
    return cookies
