"""Code shared by the pages of all sites: requests, templates, notices and sign-in."""

from __future__ import annotations

import sqlite3
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

LOGIN_COOKIE = "user"
LINE_CHARACTERS = 120
MAX_FORM_BYTES = 100_000


@dataclass(slots=True)
class Visit:
    """One request to a site within an episode.

    Attributes:
        request: Starlette's request.
        site: The site's name.
        db: The episode's own database.
        user: The account signed in on this site. None if there is none.
        form: The posted fields, stripped.
        query: The fields of the URL's query.
        part: The variable parts of the path.
    """

    request: Request
    site: str
    db: sqlite3.Connection
    user: str | None
    form: dict[str, str]
    query: dict[str, str]
    part: dict[str, Any]

    def rows(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        return self.db.execute(statement, values).fetchall()

    def row(self, statement: str, *values: object) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        first: sqlite3.Row | None = self.db.execute(statement, values).fetchone()
        return first

    def run(self, statement: str, *values: object) -> int:
        """Execute a change. Return the id of the inserted row, or 0."""
        return self.db.execute(statement, values).lastrowid or 0

    def notice(self, text: str) -> None:
        """Show `text` on the next page of this site."""
        self.run("INSERT INTO notices (site, text) VALUES (?, ?)", self.site, text)

    def render(self, template: str, http_status: int = 200, **content: object) -> Response:
        """Render a template with `content`."""
        notices = [row["text"] for row in self.rows("DELETE FROM notices WHERE site = ? RETURNING text", self.site)]
        shared = {"site": self.site, "user": self.user, "notices": notices, "path": self.request.url.path}
        text = _templates().get_template(template).render(shared | content)
        return HTMLResponse(text, http_status, {"cache-control": "no-store"})

    def go(self, path: str) -> Response:
        """Redirect the browser to another page of this site after a change."""
        return RedirectResponse(quote(path, safe="/?&=%-"), 303, {"cache-control": "no-store"})

    def missing(self) -> Response:
        """Return the "not found" page."""
        return self.render("missing.html", 404)


Handler = Callable[[Visit], Response]


def page(site: str, path: str, handler: Handler, *, post: bool = False, private: bool = False) -> Route:
    """Create a route of a site.

    Args:
        site: The site's name.
        path: The path with variable parts in Starlette's syntax.
        handler: Handles the request.
        post: Whether the route accepts a form by POST. Otherwise it is read by GET.
        private: Whether it requires a sign-in. Other visitors are redirected to /login.
    """

    async def endpoint(request: Request) -> Response:
        body = await request.body() if post else b""
        if len(body) > MAX_FORM_BYTES:
            return Response("The form is too long.", 413)
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        form = {name: value.replace("\r\n", "\n").strip() for name, value in fields}
        user = request.cookies.get(LOGIN_COOKIE) or None
        visit = Visit(request, site, request.scope["episode"].db, user, form, dict(request.query_params), request.path_params)
        if private and user is None:
            return visit.go("/login")
        return handler(visit)

    return Route(path, endpoint, methods=["POST" if post else "GET"])


def login_routes(site: str, accounts: str, home: str = "/") -> list[Route]:
    """Create the routes for signing in and out.

    Args:
        site: The site's name.
        accounts: The table with the columns username and password.
        home: The page shown afterwards.
    """

    def ask(visit: Visit) -> Response:
        return visit.render("login.html")

    def enter(visit: Visit) -> Response:
        name, password = visit.form.get("username", ""), visit.form.get("password", "")
        if visit.row(f"SELECT 1 FROM {accounts} WHERE username = ? AND password = ?", name, password) is None:
            visit.notice("User name or password is wrong.")
            return visit.go("/login")
        answer = visit.go(home)
        answer.set_cookie(LOGIN_COOKIE, name, httponly=True)
        return answer

    def leave(visit: Visit) -> Response:
        answer = visit.go(home)
        answer.delete_cookie(LOGIN_COOKIE)
        return answer

    return [page(site, "/login", ask), page(site, "/login", enter, post=True), page(site, "/logout", leave, post=True)]


def whole(text: str | None, low: int, high: int) -> int | None:
    """Parse a whole number. None if it is not one or lies outside `low` to `high`."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return int(text) if low <= int(text) <= high else None


def slug(text: str) -> str:
    """Convert `text` to a part of a URL: "My First Post!" becomes "my-first-post"."""
    words = "".join(letter if letter.isalnum() and letter.isascii() else " " for letter in text.lower()).split()
    return "-".join(words)[:60].strip("-") or "untitled"


def contains(text: str) -> str:
    """Return the LIKE pattern (with ESCAPE '!') that matches texts containing `text`."""
    return "%" + "".join("!" + letter if letter in "%_!" else letter for letter in text) + "%"


def _lines(text: str) -> Sequence[str]:
    """Wrap `text` into lines of fixed length, so that the layout does not depend on fonts."""
    return [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, LINE_CHARACTERS)]


def money(cents: int) -> str:
    """Format a price in cents, e.g. $1,204.50."""
    return f"${cents // 100:,}.{cents % 100:02}"


@cache
def _templates() -> jinja2.Environment:
    folder = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    made = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters |= {"lines": _lines, "money": money}
    return made
