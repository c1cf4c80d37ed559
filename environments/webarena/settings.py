"""Settings of a WebArena server, read from environment variables."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from environments.environment import SettingsError
from environments.webarena.addresses import (
    EMBEDDED,
    Addresses,
    check_answers,
    check_url,
    from_environment,
)
from environments.webarena.judge import Judge
from environments.webarena.page_parts import PAGE_CHARACTERS

MIN_PAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Settings:
    """Tasks, sites and limits of a server.

    Attributes:
        tasks: WEBARENA_TASKS, a folder or file of WebArena's task files. None means the stand-in
            tasks on the embedded sites.
        logins: WEBARENA_LOGINS, the parent of the .auth folder that the tasks refer to. Default:
            the parent of `tasks`.
        addresses: SHOPPING, SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE: URLs of
            the real sites. They are only read if `tasks` is set.
        judge: WEBARENA_JUDGE_URL, WEBARENA_JUDGE_MODEL and WEBARENA_JUDGE_KEY: the language model
            that compares answers. None disables it.
        page_characters: WEBARENA_PAGE_CHARACTERS, the maximum characters of a page in one
            observation, at least `MIN_PAGE_CHARACTERS`, see `PageParts`.
        services: WEBARENA_SERVICES, further servers that pages may ask, each as host:port, e.g. the
            routing servers of the map. The agent cannot write their addresses.
    """

    tasks: Path | None
    logins: Path
    addresses: Addresses
    judge: Judge | None
    page_characters: int = PAGE_CHARACTERS
    services: tuple[str, ...] = ()

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from environment variables, and check them as far as possible.

        Raises:
            SettingsError: A value is invalid, or nothing listens at an address.
        """
        named = variables.get("WEBARENA_CHROMIUM")
        if named and shutil.which(named) is None:
            raise SettingsError(
                "WEBARENA_CHROMIUM", f"is {named!r}, which is not a program on this machine"
            )
        path = variables.get("WEBARENA_TASKS")
        tasks = Path(os.path.expanduser(path)) if path else None
        logins = variables.get("WEBARENA_LOGINS")
        if logins and not Path(os.path.expanduser(logins)).is_dir():
            raise SettingsError(
                "WEBARENA_LOGINS",
                f"is {logins!r}, which is not a folder; set it to the parent of .auth",
            )
        addresses = from_environment(variables) if tasks else Addresses(EMBEDDED)
        for name, url in addresses.urls.items() if tasks else ():
            check_answers(name.upper(), url)
        return cls(
            tasks=tasks,
            logins=Path(os.path.expanduser(logins))
            if logins
            else tasks.parent
            if tasks
            else Path(),
            addresses=addresses,
            judge=_judge(variables),
            page_characters=_page_characters(variables.get("WEBARENA_PAGE_CHARACTERS")),
            services=_services(variables.get("WEBARENA_SERVICES", "")),
        )


def _services(value: str) -> tuple[str, ...]:
    for each in value.split():
        if not re.fullmatch(r"([\w.-]+|\[[\da-fA-F:.]+\]):\d+", each, re.ASCII):
            raise SettingsError(
                "WEBARENA_SERVICES",
                f"holds {each!r}; set it to servers as host:port, separated by spaces",
            )
        check_url("WEBARENA_SERVICES", f"http://{each}")
        check_answers("WEBARENA_SERVICES", f"http://{each}")
    return tuple(value.split())


def _page_characters(value: str | None) -> int:
    if not value:
        return PAGE_CHARACTERS
    if (
        not value.isascii()
        or not value.isdecimal()
        or len(value) > 9
        or int(value) < MIN_PAGE_CHARACTERS
    ):
        raise SettingsError(
            "WEBARENA_PAGE_CHARACTERS",
            f"is {value!r}; set it to an integer of at least {MIN_PAGE_CHARACTERS}",
        )
    return int(value)


def _judge(variables: Mapping[str, str]) -> Judge | None:
    """Return the judge that the variables configure, or None."""
    url, model, key = (
        variables.get(f"WEBARENA_JUDGE_{part}") or "" for part in ("URL", "MODEL", "KEY")
    )
    if not url and (model or key):
        raise SettingsError(
            "WEBARENA_JUDGE_URL", "is not set; set it to the endpoint of WEBARENA_JUDGE_MODEL"
        )
    if not url:
        return None
    if not model:
        raise SettingsError(
            "WEBARENA_JUDGE_MODEL", "is not set; set it to a model of WEBARENA_JUDGE_URL"
        )
    check_url("WEBARENA_JUDGE_URL", url)
    check_answers("WEBARENA_JUDGE_URL", url)
    return Judge(url, model, key)
