"""Scripts of a few lines that answer questions about islands without a model.

They differ only in the passage that they believe. `READER` compares the words of the search with
those of each passage, and so solves every question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

Choice = Callable[[Sequence[str], str], str]
"""Chooses one of the passages that a search for the second argument found."""
READER = "passage with most words of the search"


def play(choose: Choice, observation: str) -> Generator[str, str, None]:
    """Yield actions and receive observations: search from the innermost question outwards."""
    asked = re.search(r"((?:\w+ of the )*\w+ of \w+ \w+)[?.]$", observation)
    *outer, query = (
        asked[1].removeprefix("name of the ").split(" of the ") if asked else [observation]
    )
    while True:
        found = re.findall(
            r"Doc \d+\(Title: .*?\) (.*?)(?=\n|</information>)",
            (yield f"<search>{query}</search>"),
        )
        name = other_name(choose(found or [query], query), query)
        if not outer:
            yield f"<answer>{name}</answer>"
        query = f"{outer.pop()} of {name}" if outer else query


def other_name(passage: str, query: str) -> str:
    """Return the passage's last name that is not the one asked about."""
    names = re.findall(r"[A-Z]\w+ [A-Z]\w+", passage.replace("The ", "the "))
    return next((name for name in reversed(names) if name not in query), passage)


def in_common(passage: str, query: str) -> int:
    """Return the number of words that a passage and a query share."""
    return len(set(re.findall(r"\w+", passage)) & set(query.split()))


CHOICES: dict[str, Choice] = {
    "first passage": lambda found, query: found[0],
    "last passage": lambda found, query: found[-1],
    READER: lambda found, query: max(found, key=lambda each: in_common(each, query)),
}
"""The scripts by name."""
