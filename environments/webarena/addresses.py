"""Where the sites of the tasks are: the embedded ones, or the real WebArena sites by URLs from the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from environments.environment import WorldError

NAMES = ("shopping_admin", "shopping", "reddit", "gitlab", "map", "wikipedia", "homepage")
"""WebArena's sites. Their placeholders in task files are these in capitals, e.g. __SHOPPING__; so are the environment's variables."""

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


CONNECT_S = 10.0


class SiteMissingError(WorldError):
    """A site's URL is not configured, is no URL or does not answer."""


class OutsideSitesError(Exception):
    """An address that is not part of the task's sites; the text is for the agent."""


@dataclass(frozen=True)
class Addresses:
    """The sites' URLs, without a slash at the end.

    Attributes:
        urls: By site name; a site that is left out cannot be visited.
        shown: What the agent sees and writes in their place. WebArena shows the addresses of the sites that its own are copies of.
    """

    urls: Mapping[str, str]
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether these are the sites of this package."""
        return self.urls is EMBEDDED

    def fill(self, text: str) -> str:
        """`text` with URLs for placeholders such as __SHOPPING__.

        Raises:
            SiteMissingError: A site that is named has no URL.
        """
        for name in NAMES:
            placeholder = f"__{name.upper()}__"
            if placeholder in text:
                if name not in self.urls:
                    raise SiteMissingError(f"the site {name!r} has no URL: set the environment variable {name.upper()}")
                text = text.replace(placeholder, self.urls[name])
        return text

    def hosts(self, sites: tuple[str, ...]) -> tuple[str, ...]:
        """Host, with the port if it is not the usual one, of each site and of the homepage.

        Raises:
            SiteMissingError: One of the sites has no URL.
        """
        missing = [name for name in sites if name not in self.urls]
        if missing:
            raise SiteMissingError(f"the site {missing[0]!r} has no URL: set the environment variable {missing[0].upper()}")
        wanted = [*sites, *(("homepage",) if "homepage" in self.urls else ())]
        return tuple(dict.fromkeys(host_of(self.urls[name]) for name in wanted))

    def to_shown(self, url: str) -> str:
        """A real URL as the agent sees it."""
        return _exchange(url, [(self.urls[name], address) for name, address in self.shown.items() if name in self.urls])

    def to_real(self, url: str) -> str:
        """What the agent wrote as a real URL."""
        pairs = [(address, self.urls[name]) for name, address in self.shown.items() if name in self.urls]
        return _exchange(url, pairs + [(address.replace("http:", "https:"), real) for address, real in pairs])

    def resolve(self, written: str, hosts: Collection[str]) -> str:
        """The real URL of an address that an agent wrote.

        Args:
            written: With or without its scheme, under the shown or the real name.
            hosts: Where the task may go, see `hosts`.

        Raises:
            OutsideSitesError: It is no address, or on another host.
        """
        url = self.to_real(written if "://" in written or written.startswith("about:") else f"http://{written}")
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
            raise OutsideSitesError(f"'{written[:200]}' is not part of this task's sites: {', '.join(sites)}.")
        return url


def _exchange(url: str, pairs: list[tuple[str, str]]) -> str:
    for before, after in pairs:
        if url == before or (url.startswith(before) and url[len(before)] in "/?#"):
            return after + url[len(before) :]
    return url


def host_of(url: str) -> str:
    """Host and port as a browser writes them: the usual port is left out."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def from_environment(environment: Mapping[str, str] | None = None) -> Addresses:
    """The real sites that the variables SHOPPING, SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE name.

    Raises:
        SiteMissingError: None is set, or a value is not an http or https URL.
    """
    environment = os.environ if environment is None else environment
    urls = {name: environment[name.upper()].strip().rstrip("/") for name in NAMES if environment.get(name.upper())}
    if not urls:
        raise SiteMissingError(f"no site has a URL: set one or more of {', '.join(name.upper() for name in NAMES)}")
    for name, url in urls.items():
        check_url(name.upper(), url)
    return Addresses(urls, {name: _PUBLISHED[name] for name in NAMES})


def check_url(variable: str, url: str) -> None:
    """Raises SiteMissingError if what the variable holds is not an http or https URL."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise SiteMissingError(f"{variable} is {url!r}, which is not an http or https URL")


def check_answers(variable: str, url: str) -> None:
    """Raises SiteMissingError if nothing listens at the URL that the variable holds."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]), CONNECT_S).close()
    except (OSError, UnicodeError) as fault:
        raise SiteMissingError(f"{variable} is {url!r}, where nothing answers: {fault}") from fault
