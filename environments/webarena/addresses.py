"""Addresses of the tasks' sites: embedded sites, or real ones named by environment variables."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from environments.environment import SettingsError

NAMES = ("shopping_admin", "shopping", "reddit", "gitlab", "map", "wikipedia", "homepage")
"""WebArena's sites. In capitals they name environment variables and placeholders in task files.

Example of a placeholder: __SHOPPING__.
"""

EMBEDDED = {
    "shopping_admin": "http://content.test/admin",
    "shopping": "http://shop.test",
    "reddit": "http://forum.test",
    "gitlab": "http://repos.test",
    "homepage": "http://home.test",
}
_PUBLISHED = {
    "shopping_admin": "http://luma.com/admin",
    "shopping": "http://onestopmarket.com",
    "reddit": "http://reddit.com",
    "gitlab": "http://gitlab.com",
    "map": "http://openstreetmap.org",
    "wikipedia": "http://wikipedia.org",
    "homepage": "http://homepage.com",
}
_HOST_ENDS = r"(?![\w@-]|[.:]\w)"
CONNECT_S = 10.0


class OutsideSitesError(Exception):
    """An address that is not part of the task's sites. The message addresses the agent."""


@dataclass(frozen=True)
class Addresses:
    """The sites' URLs without a trailing slash.

    Attributes:
        urls: URLs by site name. A site without an entry cannot be visited.
        shown: Addresses that the agent sees and writes instead. WebArena shows the addresses of
            the sites that it copied.
    """

    urls: Mapping[str, str]
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether these are the embedded sites of this package."""
        return self.urls is EMBEDDED

    def fill(self, text: str) -> str:
        """Replace placeholders such as __SHOPPING__ in `text` by URLs.

        Raises:
            SettingsError: A site of a placeholder has no URL.
        """
        for name in NAMES:
            placeholder = f"__{name.upper()}__"
            if placeholder in text:
                if name not in self.urls:
                    raise _no_url(name)
                text = text.replace(placeholder, self.urls[name])
        return text

    def unfilled(self, text: str) -> str:
        """Return a text in which placeholders replace the sites' URLs."""
        found = {name: url for name, url in self.urls.items() if name in NAMES}
        for name, url in sorted(found.items(), key=lambda each: -len(each[1])):
            text = text.replace(url, f"__{name.upper()}__")
        return text

    def hosts(self, sites: tuple[str, ...]) -> tuple[str, ...]:
        """Return the host of each site and of the homepage, with the port if it is not the default.

        Raises:
            SettingsError: One of the sites has no URL.
        """
        missing = [name for name in sites if name not in self.urls]
        if missing:
            raise _no_url(missing[0])
        wanted = [*sites, *(("homepage",) if "homepage" in self.urls else ())]
        return tuple(dict.fromkeys(host_of(self.urls[name]) for name in wanted))

    def to_shown(self, url: str) -> str:
        """Convert a real URL to the one that the agent sees."""
        return _exchange(
            url,
            [
                (self.urls[name], address)
                for name, address in self.shown.items()
                if name in self.urls
            ],
        )

    def to_real(self, text: str) -> str:
        """Convert the shown URLs in a text that the agent wrote to real ones."""
        for name, address in self.shown.items():
            if name in self.urls:
                shown = re.escape(address).replace("http:", "https?:") + _HOST_ENDS
                text = self.urls[name].join(re.split(shown, text))
        return text

    def resolve(self, written: str, hosts: Collection[str]) -> str:
        """Return the real URL of an address that an agent wrote.

        Args:
            written: The address with or without a scheme, under the shown or the real name.
            hosts: The hosts that the task may visit, see `hosts`.

        Raises:
            OutsideSitesError: The text is not an address, or its host is not allowed.
        """
        url = self.to_real(
            written if "://" in written or written.startswith("about:") else f"http://{written}"
        )
        try:
            parts = urlsplit(url)
            host = host_of(url)
        except ValueError:
            raise OutsideSitesError(f"'{written[:200]}' is not an address.") from None
        if url == "about:blank":
            return url
        if parts.scheme not in ("http", "https") or host not in hosts or parts.username is not None:
            schemes = {host_of(real): urlsplit(real).scheme for real in self.urls.values()}
            sites = sorted(self.to_shown(f"{schemes.get(name, 'http')}://{name}") for name in hosts)
            raise OutsideSitesError(
                f"'{written[:200]}' is not part of this task's sites: {', '.join(sites)}."
            )
        return url


def _no_url(site: str) -> SettingsError:
    return SettingsError(site.upper(), f"is not set; set it to the URL of the site {site!r}")


def _exchange(url: str, pairs: list[tuple[str, str]]) -> str:
    for before, after in pairs:
        if url == before or (url.startswith(before) and url[len(before)] in "/?#"):
            return after + url[len(before) :]
    return url


def host_of(url: str) -> str:
    """Return host and port as browsers write them, without the scheme's default port."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def from_environment(environment: Mapping[str, str] | None = None) -> Addresses:
    """Read the real sites' URLs from environment variables.

    The variables are SHOPPING, SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE.

    Raises:
        SettingsError: None of them is set, or a value is not an http or https URL.
    """
    environment = os.environ if environment is None else environment
    urls = {
        name: environment[name.upper()].strip().rstrip("/")
        for name in NAMES
        if environment.get(name.upper())
    }
    if not urls:
        raise SettingsError(
            ", ".join(name.upper() for name in NAMES),
            "are not set; set at least one to the URL of its site",
        )
    for name, url in urls.items():
        check_url(name.upper(), url)
    return Addresses(urls, {name: _PUBLISHED[name] for name in NAMES})


def check_url(variable: str, url: str) -> None:
    """Check that an environment variable's value is an http or https URL.

    Raises:
        SettingsError: It is not.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise SettingsError(variable, f"is {url!r}, which is not an http or https URL")


def check_answers(variable: str, url: str) -> None:
    """Check that a server listens at the URL of an environment variable.

    Raises:
        SettingsError: The connection fails within `CONNECT_S` seconds.
    """
    parts = urlsplit(url)
    try:
        socket.create_connection(
            (parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]), CONNECT_S
        ).close()
    except (OSError, UnicodeError) as fault:
        raise SettingsError(variable, f"is {url!r}, where no server listens: {fault}") from fault
