"""Facts and the passages that state them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Thing:
    """An entity such as a country, an airport or an element, or a plain value such as a year.

    Attributes:
        kind: "country", "city", ..., or "value" for a plain value.
        key: Identifier within its kind.
        name: Name used in questions, passages and answers.
        aliases: Other names that are correct as an answer.
        hint: Text that a search adds to the name to separate namesakes, e.g. a city's country.
    """

    kind: str
    key: str
    name: str = field(compare=False)
    aliases: tuple[str, ...] = field(default=(), compare=False)
    hint: str = field(default="", compare=False)


def value(text: str, *aliases: str) -> Thing:
    """Make a plain value."""
    return Thing("value", text, text, aliases)


Statement = tuple[Thing, str, Thing]
"""Subject, relation, object."""


class Facts:
    """Passages with the facts that each states.

    Attributes:
        passages: Texts, each a title, a newline and the body.
        objects: Objects by relation and subject, each with the number of the passage that states
            it.
        subjects: The inverse: subjects by relation and object.
    """

    def __init__(self) -> None:
        self.passages: list[str] = []
        self.objects: dict[str, dict[Thing, list[tuple[Thing, int]]]] = {}
        self.subjects: dict[str, dict[Thing, list[tuple[Thing, int]]]] = {}

    def add(self, title: str, text: str, statements: Iterable[Statement] = ()) -> None:
        """Add a passage and the facts that it states."""
        number = len(self.passages)
        self.passages.append(f"{title}\n{text}")
        for subject, relation, object_ in statements:
            self.objects.setdefault(relation, {}).setdefault(subject, []).append((object_, number))
            self.subjects.setdefault(relation, {}).setdefault(object_, []).append((subject, number))


def listed(names: Iterable[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


def counted(number: float) -> str:
    """Format a number with thousands separators, e.g. "8,516,543"."""
    return f"{number:,.0f}"
