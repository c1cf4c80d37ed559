"""People and calendar of the embedded sites."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

TODAY = date(2026, 3, 2)
"""The date of every episode."""

_FIRST = (
    "Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Ingrid", "Jonas", "Katya", "Leo", "Mira", "Nils",
    "Olga", "Pavel", "Quinn", "Rosa", "Soren", "Tilda", "Ugo", "Vera", "Wanda", "Yusuf",
)  # fmt: skip
_LAST = (
    "Abbott", "Brandt", "Calloway", "Dunmore", "Eriksen", "Farrow", "Garland", "Hollis", "Ivers", "Jarvis", "Kessler", "Lindqvist",
    "Marlow", "Norwood", "Okafor", "Pruitt", "Quimby", "Rhodes", "Sandoval", "Thorne", "Ueda", "Varga", "Whitlock", "Yates",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an account."""

    name: str
    username: str
    email: str


def people() -> list[Person]:
    """Return all people in a fixed order. No two share a first or a last name."""
    last = list(_LAST)
    Random("people").shuffle(last)
    return [
        Person(
            f"{first} {family}",
            f"{first.lower()}.{family.lower()}",
            f"{first.lower()}@{family.lower()}.example",
        )
        for first, family in zip(_FIRST, last, strict=True)
    ]


def days_ago(days: int) -> str:
    """Return the date `days` before `TODAY` in ISO format, e.g. 2026-03-02."""
    return (TODAY - timedelta(days=days)).isoformat()
