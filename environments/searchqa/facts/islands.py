"""Made-up islands: passages of one fact each, and questions of one and two hops.

Only searching and reading can answer them. A search for a fact finds three passages about the
island, and only one of them is about the asked relation. They are shown in random order. Half of
the passages name the answer before the island, so the answer is not at a fixed place of a passage
either.

No island belongs to two sides, so held-out questions concern names and facts that no demonstration
asks for. For each relation there are lists without questions for this relation of a neighbour, and
evaluation lists of these questions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from environments.searchqa import RELATIONS
from environments.searchqa.corpus import Hop, Question
from environments.searchqa.sampling import hashed_fraction, shuffle_key

COLLECTION = "islands"
SIDES = {"lessons": 1200, "train": 700, "validation": 240, "test": 240}
"""Number of pairs of neighbours that the questions of each list are about."""
LEARNED = ("lessons", "train")
"""The sides whose lists hold all their questions. The others are for evaluation."""
HELD_OUT_TASKS = 120
"""Number of questions in each evaluation list, balanced over the list's hop counts."""
_ENDINGS = ("dok", "fam", "gip", "kor", "lun", "mab", "nid", "rup", "sel", "tev", "wim", "zot")
HOME_NAMES, NEIGHBOUR_NAMES = (
    tuple("".join(parts) for parts in product(starts, _ENDINGS))
    for starts in (("Ba", "De", "Fi", "Go", "Ka", "Lo"), ("Mu", "Re", "Ti", "Wo", "Ye", "Zu"))
)
"""Words in the names of the islands that have a neighbour, and in those of the neighbours.

They differ, so no passage about two islands holds the words of a third island.
"""
VALUES = tuple(
    "".join(parts)
    for parts in product(
        ("Ha", "Je", "No", "Pi", "Su", "Vo"),
        ("bim", "dug", "kal", "lok", "mof", "nat", "pod", "rim"),
    )
)
FIRST_WORDS = {
    "capital": "Port",
    "castle": "Fort",
    "harbour": "Bay",
    "lake": "Lake",
    "peak": "Mount",
}
"""First word of the name of what an island has, by relation."""
NEIGHBOUR = "neighbour"
ASKED = ("What is the {}?", "Tell me the {}.", "What is the name of the {}?")
STATED = ("The {relation} of {island} is {value}.", "{value} is the {relation} of {island}.")
TITLE = "Islands"
"""Title of every passage. A title that named the island would replace reading the passage."""


@dataclass(frozen=True, slots=True)
class Island:
    """An island.

    Attributes:
        name: Two words.
        side: The side whose lists ask about the island, a key of `SIDES`.
        has: What the island has by relation, e.g. "capital": "Port Habim". One island of each pair
            also has a "neighbour": the name of the other.
    """

    name: str
    side: str
    has: dict[str, str]


def islands() -> tuple[Island, ...]:
    """Return all islands, pair after pair. No two have the same words in their names."""
    homes, neighbours = _names(HOME_NAMES), _names(NEIGHBOUR_NAMES)
    found = []
    for side, count in SIDES.items():
        for _ in range(count):
            name, neighbour = next(homes), next(neighbours)
            found += [
                Island(name, side, {**_drawn(name), NEIGHBOUR: neighbour}),
                Island(neighbour, side, _drawn(neighbour)),
            ]
    return tuple(found)


def _names(words: Sequence[str]) -> Iterator[str]:
    """Yield names of two words in random order."""
    for pair in sorted(
        combinations(words, 2), key=lambda pair: shuffle_key("island", " ".join(pair))
    ):
        yield " ".join(pair if hashed_fraction("order", " ".join(pair)) < 0.5 else reversed(pair))


def _drawn(name: str) -> dict[str, str]:
    """Draw at least two of the relations, each with a value."""
    order = sorted(RELATIONS, key=lambda relation: shuffle_key(name, relation))
    some = sorted(order[: 2 + int(hashed_fraction("how many", name) * (len(order) - 1))])
    return {
        relation: f"{FIRST_WORDS[relation]} {_choice(VALUES, f'{relation} of {name}')}"
        for relation in some
    }


def passages(all_islands: Sequence[Island]) -> dict[tuple[str, str], str]:
    """Return the passages by island name and relation, in random order.

    Each is a title, a newline and the text.
    """
    facts = [
        (island.name, relation, value)
        for island in all_islands
        for relation, value in island.has.items()
    ]
    facts.sort(key=lambda fact: shuffle_key("passage", f"{fact[1]} of {fact[0]}"))
    return {
        (island, relation): f"{TITLE}\n{_stated(island, relation, value)}"
        for island, relation, value in facts
    }


def _stated(island: str, relation: str, value: str) -> str:
    return _choice(STATED, f"passage {relation} {island}").format(
        relation=relation, island=island, value=value
    )


def island_questions(all_islands: Sequence[Island], first_passage: int) -> list[Question]:
    """Return the questions of all sides in random order.

    Args:
        first_passage: The passage number of the first of their `passages`.
    """
    numbers = {key: number for number, key in enumerate(passages(all_islands), first_passage)}
    by_name = {island.name: island for island in all_islands}
    found = [
        question for island in all_islands for question in _questions(island, by_name, numbers)
    ]
    return sorted(found, key=lambda question: shuffle_key("island question", question.question))


def island_lists(asked: Mapping[int, Question], side_of: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the task lists of the islands. `TASK_LISTS` of the package describes them.

    Args:
        asked: The islands' questions by task index.
        side_of: The side of each island by name.
    """
    found: dict[str, list[int]] = {}
    for side in SIDES:
        of_side = {index: each for index, each in asked.items() if side_of[island_of(each)] == side}
        found[f"{COLLECTION}-{side}"] = _balanced(of_side, side, (1, 2))
        for relation in RELATIONS:
            held_out = {
                index: each
                for index, each in of_side.items()
                if NEIGHBOUR in each.group and each.group.endswith(relation)
            }
            known = {index: each for index, each in of_side.items() if index not in held_out}
            found[f"{COLLECTION}-no-{relation}-{side}"] = _balanced(known, side, (1, 2))
            if side not in LEARNED:
                found[f"{COLLECTION}-{relation}-{side}"] = _balanced(held_out, side, (2,))
    return found


def _balanced(asked: Mapping[int, Question], side: str, hop_counts: Sequence[int]) -> list[int]:
    """Return the questions of these hop counts, and in evaluation lists equally many of each."""
    by_hops = [
        [index for index, each in asked.items() if len(each.hops) == hops] for hops in hop_counts
    ]
    if side in LEARNED:
        return [index for some in by_hops for index in some]
    return [index for some in zip(*by_hops, strict=False) for index in some][:HELD_OUT_TASKS]


def island_of(question: Question) -> str:
    """Return the name of the island that a question starts from."""
    return question.hops[0].query.partition(" of ")[2]


def _questions(
    island: Island, by_name: Mapping[str, Island], numbers: Mapping[tuple[str, str], int]
) -> Iterator[Question]:
    """Yield the questions about the island and its neighbour."""
    yield from _asked(island, island.name, "island", (), numbers)
    if NEIGHBOUR in island.has:
        hop = _hop(NEIGHBOUR, island, numbers)
        neighbour = by_name[island.has[NEIGHBOUR]]
        yield from _asked(
            neighbour, f"the {NEIGHBOUR} of {island.name}", f"island > {NEIGHBOUR}", (hop,), numbers
        )


def _asked(
    island: Island,
    called: str,
    path: str,
    hops: tuple[Hop, ...],
    numbers: Mapping[tuple[str, str], int],
) -> Iterator[Question]:
    """Yield one question for each relation of the island, which the question calls `called`."""
    for relation in RELATIONS:
        if relation in island.has:
            asked = f"{relation} of {called}"
            wording = _choice(ASKED, f"question {asked}")
            found_by = (*hops, _hop(relation, island, numbers))
            yield Question(
                wording.format(asked),
                (island.has[relation],),
                f"{path} > {relation}",
                found_by,
                COLLECTION,
            )


def _hop(relation: str, of: Island, numbers: Mapping[tuple[str, str], int]) -> Hop:
    query = f"{relation} of {of.name}"
    return Hop(query, numbers[of.name, relation], f"The {query} is {of.has[relation]}.")


def _choice(some: Sequence[str], purpose: str) -> str:
    return some[int(hashed_fraction("island", purpose) * len(some))]
