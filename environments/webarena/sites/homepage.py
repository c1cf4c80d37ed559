"""The page that lists the sites, and the page with their accounts."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from environments.webarena.sites import content_data, forum_data, repositories_data, shop_data
from environments.webarena.sites.pages import Visit, page

SITE = "homepage"
_SITES = (
    ("http://shop.test/", "Holm & Hearth, a shop", shop_data.CUSTOMER, shop_data.PASSWORD),
    ("http://forum.test/", "Lindens, a forum", forum_data.MEMBER, forum_data.PASSWORD),
    ("http://repos.test/", "Coppice, a repository host", repositories_data.USER, repositories_data.PASSWORD),
    ("http://content.test/admin", "The Saltmarsh Courier, a content manager", content_data.EDITOR, content_data.PASSWORD),
)


def _sites(visit: Visit) -> Response:
    entries = [*((address, text) for address, text, _, _ in _SITES), ("/password.html", "Accounts and passwords")]
    return visit.render("homepage.html", title="Homepage", entries=entries)


def _passwords(visit: Visit) -> Response:
    entries = [(address, f"{text}: user name {user}, password {password}") for address, text, user, password in _SITES]
    return visit.render("homepage.html", title="Accounts", entries=entries)


def routes() -> list[Route]:
    """Return the homepage's routes."""
    return [page(SITE, "/", _sites), page(SITE, "/password.html", _passwords)]
