"""Intent templates, read from the YAML files of this folder."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import yaml

from environments.webarena.sites.database import ACCOUNTS

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

    def all(self, statement: str, values: Mapping[str, Any]) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        return self.db.execute(statement, values).fetchall()

    def some(self, statement: str, values: Mapping[str, Any]) -> list[sqlite3.Row]:
        """Return up to `INSTANCES` rows of a query in random order."""
        rows = self.all(statement, values)
        return self.random.sample(rows, min(INSTANCES, len(rows)))


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query whose first column has the values to choose from.

    Attributes:
        sample: The query, if the choice is made among up to `INSTANCES` sampled rows.
    """

    all: str = ""
    sample: str = ""


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An intent template.

    Its tasks differ in values. Each row of `sample`, `all` or `given` gives one task. A row with a
    NULL gives none. Texts refer to the values in braces, e.g. {title}. The value {me} is the
    account of the tasks' agent. Queries refer to it as :me.

    Attributes:
        wording: The intent, with {{name}} for each value.
        plan: The solution from the start page: steps separated by " > ". A step is "link NAME",
            "button NAME", "radio NAME", "type FIELD = TEXT", "enter FIELD = TEXT", which also
            presses Enter, or "stop ANSWER".
        sample: A query, of whose rows up to `INSTANCES` are sampled.
        all: A query, all of whose rows are used.
        paired: Further values: the first row gets the first one, and so on.
        each: Further values: each row is used with every one.
        choices: Further values, each chosen at random. A chosen mapping adds all its values.
        texts: Further values, composed of those before.
        reply: How to write the answer. It is appended to the wording, and no random choice depends
            on it.
        answer_is: The answer, ignoring case.
        ends_on: The page on which the episode must end.
        pages_show: Texts that pages must show: the page, JavaScript, or the CSS selector or XPath of
            an element there, and the exact text or a list of phrases.
        login: Whether an account is signed in at the start.
    """

    wording: str
    plan: str
    sample: str = ""
    all: str = ""
    given: tuple[dict[str, Any], ...] = ()
    paired: dict[str, tuple[str, ...]] = {}
    each: dict[str, tuple[str, ...]] = {}
    choices: dict[str, Query | list[Any]] = {}
    texts: dict[str, str] = {}
    reply: str = ""
    answer_is: str = ""
    ends_on: str = ""
    pages_show: tuple[tuple[str, str, str | list[str]], ...] = ()
    login: bool = True

    def instances(self, site: str, facts: Facts) -> Iterator[Instance]:
        """Draw the tasks.

        Args:
            site: WebArena's name of the site, e.g. "reddit".
        """
        names = re.findall(r"{{(\w+)}}", self.wording)
        check = self._check()
        for values in self._values({"me": ACCOUNTS[site]}, facts):
            for name, some in self.choices.items():
                if isinstance(some, Query):
                    if some.sample:
                        rows = facts.some(some.sample, values)
                    else:
                        rows = facts.all(some.all, values)
                    some = [row[0] for row in rows]
                chosen = facts.random.choice(some)
                values |= chosen if isinstance(chosen, dict) else {name: chosen}
            for name, text in self.texts.items():
                values[name] = text.format_map(values)
            plan = [_filled(parse_move(step), values) for step in self.plan.split(" > ")]
            yield {name: values[name] for name in names}, _filled(check, values), plan

    def _values(self, shared: Mapping[str, Any], facts: Facts) -> Iterator[dict[str, Any]]:
        """Yield the values of each task, without random choices and composed texts."""
        rows: Sequence[Any] = self.given
        if not rows:
            rows = facts.some(self.sample, shared) if self.sample else facts.all(self.all, shared)
        if self.paired:
            [(name, texts)] = self.paired.items()
            rows = [{**row, name: text} for row, text in zip(rows, texts, strict=False)]
        for row, *more in product(rows, *self.each.values()):
            values = {**shared, **row, **dict(zip(self.each, more, strict=True))}
            if None not in values.values():
                yield values

    def _check(self) -> Evaluation:
        check: Evaluation = {"eval_types": []}
        if self.answer_is:
            check["eval_types"].append("string_match")
            check["reference_answers"] = {"exact_match": self.answer_is}
        if self.ends_on:
            check["eval_types"].append("url_match")
            check |= {"reference_url": self.ends_on, "url_note": "GOLD in PRED"}
        if self.pages_show:
            check["eval_types"].append("program_html")
            check["program_html"] = [
                {
                    "url": url,
                    "locator": _locator(element),
                    "required_contents": {
                        "exact_match" if isinstance(text, str) else "must_include": text
                    },
                }
                for url, element, text in self.pages_show
            ]
        return check


@cache
def read_intents(name: str) -> tuple[Intent, ...]:
    """Read the templates of a file of this folder, e.g. "shop"."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text("utf-8")
    return msgspec.convert(yaml.load(text, yaml.CSafeLoader), tuple[Intent, ...])


def _locator(element: str) -> str:
    """Return JavaScript, a query or the text of a CSS selector or XPath as a task file's locator."""
    if element.startswith(("document.", "func:")):
        return element
    if element.startswith("//"):
        return f'document.evaluate("{element}", document).iterateNext().outerText'
    return f"document.querySelector('{element}').outerText"


def parse_move(step: str) -> Move:
    """Parse a step of a plan. See `Intent.plan`."""
    verb, _, rest = step.partition(" ")
    if verb == "stop":
        return Move("stop", text=rest)
    if verb in ("type", "enter"):
        name, _, text = rest.partition(" = ")
        return Move("type", "textbox", name, text, enter=verb == "enter")
    return Move("click", verb, rest)


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a move, a check or a part of them with the values in place of their names."""
    if isinstance(part, str):
        return part.format_map(values)
    if isinstance(part, dict):
        return {name: _filled(each, values) for name, each in part.items()}
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    if isinstance(part, Move):
        return Move(*(_filled(getattr(part, each.name), values) for each in fields(part)))
    return part
