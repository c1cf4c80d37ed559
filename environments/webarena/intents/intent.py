"""Intent templates, and the helpers that the sites' templates are written with."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

INSTANCES = 8
"""Maximum number of tasks per template."""


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a plan: an action on the element with that role and name."""

    verb: Literal["click", "type", "stop"]
    role: str = ""
    name: str = ""
    text: str = ""
    enter: bool = False


Evaluation = dict[str, Any]
"""The `eval` part of a WebArena task file."""
Instance = tuple[dict[str, Any], Evaluation, list[Move]]
"""The values of the wording, the evaluation, and a plan from the start page."""


class Facts:
    """Data from which a template draws its instances: the initial site state and a generator."""

    def __init__(self, db: sqlite3.Connection, seed: str) -> None:
        self.db = db
        self.random = Random(seed)

    def some(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """Return up to `INSTANCES` rows of a query in random order."""
        rows = self.db.execute(statement, values).fetchall()
        return self.random.sample(rows, min(INSTANCES, len(rows)))

    def one(self, statement: str, *values: object) -> Any:
        """Return the first value of a query's first row."""
        return self.db.execute(statement, values).fetchone()[0]


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent template.

    Attributes:
        site: WebArena's name of the site, e.g. "reddit".
        wording: The intent, with {{name}} for each value.
        instances: Draws the tasks.
        login: Whether an account is signed in at the start.
    """

    site: str
    wording: str
    instances: Callable[[Facts], Iterable[Instance]]
    login: bool = True


class Catalogue:
    """Collects the templates of one site. `@catalogue("wording")` adds one."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.intents: list[Intent] = []

    def __call__(self, wording: str, *, login: bool = True) -> Callable[[Callable[[Facts], Iterable[Instance]]], None]:
        """Add the decorated function as the template with that wording."""

        def add(instances: Callable[[Facts], Iterable[Instance]]) -> None:
            self.intents.append(Intent(self.site, wording, instances, login))

        return add


def click(role: str, name: str) -> Move:
    """Click on an element."""
    return Move("click", role, name)


def link(name: str) -> Move:
    """Click on a link."""
    return click("link", name)


def button(name: str) -> Move:
    """Click on a button."""
    return click("button", name)


def write(name: str, text: str, *, enter: bool = False) -> Move:
    """Type into a field."""
    return Move("type", "textbox", name, text, enter)


def stop(answer: str = "") -> Move:
    """End with an answer."""
    return Move("stop", text=answer)


def told(*phrases: str) -> Evaluation:
    """Require every phrase in the answer."""
    return {"eval_types": ["string_match"], "reference_answers": {"must_include": list(phrases)}}


def told_exactly(text: str) -> Evaluation:
    """Require the answer to equal the text, ignoring case."""
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": text}}


def arrived(url: str) -> Evaluation:
    """Require the episode to end on that page."""
    return {"eval_types": ["url_match"], "reference_url": url, "url_note": "GOLD in PRED"}


def shown(*checks: tuple[str, str, list[str] | str]) -> Evaluation:
    """Require texts on pages.

    Args:
        checks: For each text the page's address, JavaScript that finds the element, and a list of
            phrases to include or one exact text.
    """
    kinds = {str: "exact_match", list: "must_include"}
    programs = [{"url": url, "locator": locator, "required_contents": {kinds[type(text)]: text}} for url, locator, text in checks]
    return {"eval_types": ["program_html"], "program_html": programs}


def text_of(selector: str) -> str:
    """Return the locator of an element's text."""
    return f"document.querySelector('{selector}').outerText"
