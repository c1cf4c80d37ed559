"""Code shared by all sites: routes, requests, templates, notices and sign-in."""

from __future__ import annotations

import sqlite3
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import jinja2
from markupsafe import Markup
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

LOGIN_COOKIE = "user"
LINE_CHARACTERS = 120
MAX_FORM_BYTES = 100_000


class RowConvertor(IntegerConvertor):
    """The number of a row in a path. SQLite and Python refuse longer ones, which match no route."""

    regex = "[0-9]{1,15}"


register_url_convertor("row", RowConvertor())


class Given(dict[str, Any]):
    """The values of a request by name. A missing value is an empty text."""

    def __missing__(self, name: str) -> str:
        return ""


class MissingRowError(Exception):
    """The row that a page shows does not exist."""


@dataclass(slots=True)
class Visit:
    """One request to a site within an episode.

    Attributes:
        db: The episode's own database.
        user: The account signed in on this site. None if there is none.
        given: The fields of the posted form, stripped, or of the URL's query. Also the variable
            parts of the path, and `user`. SQL statements refer to them, e.g. as `:title`.
    """

    site: Site
    db: sqlite3.Connection
    user: str | None
    given: Given

    def rows(self, statement: str, **more: object) -> list[sqlite3.Row]:
        """Return all rows of a query. `more` are further values of the statement."""
        return self.db.execute(statement, Given(self.given, **more)).fetchall()

    def row(self, statement: str, **more: object) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        return next(iter(self.rows(statement, **more)), None)

    def one(self, statement: str) -> sqlite3.Row:
        """Return the first row of a query.

        Raises:
            MissingRowError: There is none. The page then does not exist.
        """
        row = self.row(statement)
        if row is None:
            raise MissingRowError
        return row

    def run(self, statement: str, **more: object) -> int:
        """Execute a change. Return the id of the inserted row, or 0."""
        return self.db.execute(statement, Given(self.given, **more)).lastrowid or 0

    def notice(self, text: str) -> None:
        """Show `text` on the next page of this site."""
        self.run("INSERT INTO notices VALUES (:site, :text)", site=self.site.name, text=text)

    def render(self, template: str, status: int = 200) -> Response:
        """Render a template, which queries its content itself by `rows` and `one`."""
        variables = {"site": self.site.name, "user": self.user, "given": self.given}
        queries = {"rows": self.rows, "one": self.one}
        content = self.site.constants | variables | queries
        text = _templates().get_template(template).render(content)
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    def go(self, path: str) -> Response:
        """Redirect the browser to another page of this site after a change."""
        return RedirectResponse(quote(path, safe="/?&=%-"), 303, {"cache-control": "no-store"})

    def missing(self) -> Response:
        """Return the "not found" page."""
        return self.render("missing.html", 404)


Handler = Callable[[Visit], Response]


class Site:
    """A site.

    Attributes:
        name: The folder of its templates.
        constants: Variables of all its templates.
        routes: Its routes. The first one that fits a path is used.
    """

    def __init__(self, name: str, **constants: object) -> None:
        self.name = name
        self.constants = constants
        self.routes: list[Route] = []

    def pages(self, templates: Mapping[str, str], *, private: bool = False) -> None:
        """Add pages.

        Args:
            templates: Path, in Starlette's syntax -> template in the site's folder.
            private: Whether the pages require a sign-in. Other visitors are redirected to /login.
        """

        for path, template in templates.items():
            self.get(path, private=private)(
                partial(Visit.render, template=f"{self.name}/{template}")
            )

    def get(self, path: str, *, private: bool = False) -> Callable[[Handler], None]:
        """Add the decorated function as the page of a path. See `pages`."""
        return lambda handler: self._add("GET", path, handler, private)

    def post(self, path: str, *, private: bool = True) -> Callable[[Handler], None]:
        """Add the decorated function as the handler of the forms sent to a path. See `pages`."""
        return lambda handler: self._add("POST", path, handler, private)

    def add_sign_in(self, accounts: str, home: str = "/") -> None:
        """Add the pages for signing in and out.

        Args:
            accounts: The table with the columns username and password.
            home: The page shown afterwards.
        """
        known = f"SELECT 1 FROM {accounts} WHERE username = :username AND password = :password"

        @self.get("/login")
        def _ask(visit: Visit) -> Response:
            return visit.render("login.html")

        @self.post("/login", private=False)
        def _enter(visit: Visit) -> Response:
            if visit.row(known) is None:
                visit.notice("User name or password is wrong.")
                return visit.go("/login")
            answer = visit.go(home)
            answer.set_cookie(LOGIN_COOKIE, visit.given["username"], httponly=True)
            return answer

        @self.post("/logout", private=False)
        def _leave(visit: Visit) -> Response:
            answer = visit.go(home)
            answer.delete_cookie(LOGIN_COOKIE)
            return answer

    def _add(self, method: str, path: str, handler: Handler, private: bool) -> None:
        async def endpoint(request: Request) -> Response:
            fields = dict(request.query_params)
            if method == "POST":
                body = await request.body()
                if len(body) > MAX_FORM_BYTES:
                    return Response("The form is too long.", 413)
                sent = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
                fields = {name: text.replace("\r\n", "\n").strip() for name, text in sent}
            user = request.cookies.get(LOGIN_COOKIE) or None
            given = Given({**fields, **request.path_params, "user": user})
            visit = Visit(self, request.scope["episode"].db, user, given)
            if private and user is None:
                return visit.go("/login")
            try:
                return handler(visit)
            except MissingRowError:
                return visit.missing()

        self.routes.append(Route(path, endpoint, methods=[method]))


def whole(text: str, low: int, high: int) -> int | None:
    """Parse a whole number. None if it is not one or lies outside `low` to `high`."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return int(text) if low <= int(text) <= high else None


def slug(text: str) -> str:
    """Convert `text` to a part of a URL: "My First Post!" becomes "my-first-post"."""
    letters = (letter if letter.isalnum() and letter.isascii() else " " for letter in text.lower())
    return "-".join("".join(letters).split())[:60].strip("-") or "untitled"


def _paragraphs(text: str) -> Markup:
    """Wrap `text` into paragraphs of fixed length, so that the layout does not depend on fonts."""
    lines = (line for each in text.splitlines() for line in textwrap.wrap(each, LINE_CHARACTERS))
    return Markup().join(Markup("<p>{}</p>").format(line) for line in lines)


def money(cents: int) -> str:
    """Format a price in cents, e.g. $1,204.50."""
    return f"${cents // 100:,}.{cents % 100:02}"


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"paragraphs": _paragraphs, "money": money}
    return made
