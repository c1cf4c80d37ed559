"""Settings of a world on an OpenEnv server, read from environment variables."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from environments.environment import SettingsError


@dataclass(frozen=True)
class Settings:
    """The server, and what its protocol leaves open.

    Attributes:
        url: OPENENV_URL, its address, e.g. http://127.0.0.1:8000.
        token: OPENENV_TOKEN, sent as a bearer token. Empty: none.
        seeds: OPENENV_SEEDS, the number of tasks if the server has no task API. Task `i` is then a
            reset with seed `i`.
        reset: OPENENV_RESET, a JSON object with further arguments of every reset.
        rewards: OPENENV_REWARDS, the smallest and largest reward of one action, e.g. "-1 1".
    """

    url: str
    token: str = ""
    seeds: int = 1000
    reset: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[float, float] = (0.0, 1.0)


def read_settings(variables: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: A variable is missing or has an invalid value.
    """
    url = variables.get("OPENENV_URL", "").rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise SettingsError(
            "OPENENV_URL",
            f"is {url!r}; set it to the address of an OpenEnv server, e.g. http://127.0.0.1:8000",
        )
    return Settings(
        url,
        variables.get("OPENENV_TOKEN", ""),
        _seeds(variables.get("OPENENV_SEEDS", "1000")),
        _reset(variables.get("OPENENV_RESET", "{}")),
        _rewards(variables.get("OPENENV_REWARDS", "0 1")),
    )


def _seeds(text: str) -> int:
    if not text.isdecimal() or int(text) < 3:
        raise SettingsError(
            "OPENENV_SEEDS", f"is {text!r}; set it to a number of tasks, at least 3"
        )
    return int(text)


def _reset(text: str) -> Mapping[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise SettingsError(
            "OPENENV_RESET", f"is {text!r}; set it to a JSON object, e.g. '{{\"level\": 2}}'"
        )
    return read


def _rewards(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split())
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingsError(
            "OPENENV_REWARDS",
            f"is {text!r}; set it to the smallest and the largest reward of one action, e.g. '-1 "
            "1'",
        )
    return low, high
