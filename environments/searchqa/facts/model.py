"""Facts and the passages that state them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Thing:
    """What facts are about: a country, an airport, an element, ... or a plain value such as a code or a year.

    Attributes:
        kind: "country", "city", ...; "value" for a plain value.
        key: Tells things of one kind apart.
        name: What it is called in questions, passages and answers.
        aliases: Other names that are right as an answer.
        hint: What a search adds to the name to tell namesakes apart, e.g. a city's country.
    """

    kind: str
    key: str
    name: str = field(compare=False)
    aliases: tuple[str, ...] = field(default=(), compare=False)
    hint: str = field(default="", compare=False)


def value(text: str, *aliases: str) -> Thing:
    """A plain value."""
    return Thing("value", text, text, aliases)


Statement = tuple[Thing, str, Thing]
"""Subject, relation, object."""


class Facts:
    """Passages with the facts that each states.

    Attributes:
        passages: Title, line end, text.
        objects: For each relation and subject, its objects, each with the number of the passage that says so.
        subjects: The same the other way round.
    """

    def __init__(self) -> None:
        self.passages: list[str] = []
        self.objects: dict[str, dict[Thing, list[tuple[Thing, int]]]] = {}
        self.subjects: dict[str, dict[Thing, list[tuple[Thing, int]]]] = {}

    def add(self, title: str, text: str, statements: Iterable[Statement] = ()) -> None:
        """Adds a passage that states the statements."""
        number = len(self.passages)
        self.passages.append(f"{title}\n{text}")
        for subject, relation, object_ in statements:
            self.objects.setdefault(relation, {}).setdefault(subject, []).append((object_, number))
            self.subjects.setdefault(relation, {}).setdefault(object_, []).append((subject, number))


def listed(names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


def counted(number: float) -> str:
    """A number as text, thousands apart, e.g. "8,516,543"."""
    return f"{number:,.0f}"
