"""The page that lists the sites, and the page with their accounts."""

from __future__ import annotations

from environments.webarena.sites import content_data, forum_data, repositories_data, shop_data
from environments.webarena.sites.pages import Site

_SITES = (
    ("http://shop.test/", "Holm & Hearth, a shop", shop_data.CUSTOMER, shop_data.PASSWORD),
    ("http://forum.test/", "Lindens, a forum", forum_data.MEMBER, forum_data.PASSWORD),
    (
        "http://repos.test/",
        "Coppice, a repository host",
        repositories_data.USER,
        repositories_data.PASSWORD,
    ),
    (
        "http://content.test/admin",
        "The Saltmarsh Courier, a content manager",
        content_data.EDITOR,
        content_data.PASSWORD,
    ),
)
site = Site("homepage", SITES=_SITES)
site.pages({"/": "home.html", "/password.html": "accounts.html"})
