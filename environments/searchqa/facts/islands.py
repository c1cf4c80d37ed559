"""Made-up islands: passages of one fact each, few words, and questions of one to three hops.

Only searching and reading can answer them. The other embedded questions use the vocabulary of
a whole geography, which is too large for a policy of a million weights. An island's name is two
words, and its facts are drawn at random. No island belongs to two sides, so held-out questions
concern names and facts that no demonstration asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from environments.searchqa.corpus import Hop, Question
from environments.searchqa.sampling import hashed_fraction, shuffle_key

COLLECTION = "islands"
SIDES = {"lessons": 1000, "train": 640, "validation": 120, "test": 120, "new-wording-test": 120}
"""Number of islands that the questions of each list are about."""
HELD_OUT_TASKS = 120
"""Number of questions in each evaluation list, balanced over the list's hop counts."""
NAMES = tuple(
    "".join(parts)
    for parts in product(
        ("Ba", "De", "Fi", "Go", "Ka", "Lo", "Mu", "Re", "Ti", "Zu"), ("dok", "fam", "gip", "kor", "lun", "mab", "rup", "zot")
    )
)
VALUES = tuple(
    "".join(parts) for parts in product(("Ha", "Je", "No", "Pi", "Su", "Vo"), ("bim", "dug", "kal", "lok", "mof", "nat", "pod", "rim"))
)
RELATIONS = {"capital": "Port", "castle": "Fort", "harbour": "Bay", "lake": "Lake", "peak": "Mount"}
"""What an island may have, and the first word of its name."""
NEIGHBOUR = "neighbour"
MOST_HOPS = 3
SHOWN_OF_NEIGHBOURS = ("capital", "castle", "harbour")
"""What demonstrations and training ask about neighbours. Lakes and peaks are held-out templates."""
NEW_TEMPLATES = ("validation", "test")
"""Sides that also have a list of held-out templates."""
ASKED = ("What is the {}?", "Tell me the {}.", "What is the name of the {}?")
STATED = ("The {relation} of {island} is {value}.", "{island} has the {relation} {value}.")
NEW_ASKED = ("Tell me the name of the {}.",)
NEW_STATED = ("The name of the {relation} of {island} is {value}.",)
"""Wordings that only the new-wording list uses. Each of their words also occurs in the others."""


@dataclass(frozen=True, slots=True)
class Island:
    """An island.

    Attributes:
        name: Two words.
        side: The side whose lists ask about the island, a key of `SIDES`.
        has: What the island has by relation, e.g. "capital": "Port Habim".
        neighbour: The name of another island of the same side.
    """

    name: str
    side: str
    has: dict[str, str]
    neighbour: str


def islands() -> tuple[Island, ...]:
    """Return all islands. The neighbours within a side form a ring."""
    names = iter(sorted((" ".join(pair) for pair in permutations(NAMES, 2)), key=lambda name: shuffle_key("island", name)))
    found = []
    for side, count in SIDES.items():
        ring = [next(names) for _ in range(count)]
        found += [Island(name, side, _drawn(name), ring[place - 1]) for place, name in enumerate(ring)]
    return tuple(found)


def _drawn(name: str) -> dict[str, str]:
    """Draw at least one of the relations, each with a value."""
    order = sorted(RELATIONS, key=lambda relation: shuffle_key(name, relation))
    some = sorted(order[: 1 + int(hashed_fraction("how many", name) * len(order))])
    return {relation: f"{RELATIONS[relation]} {_choice(VALUES, f'{relation} of {name}')}" for relation in some}


def passages(all_islands: Sequence[Island]) -> dict[tuple[str, str], str]:
    """Return the passages by island name and relation. Each is a title, a newline and the text."""
    return {
        (island.name, relation): f"{island.name}\n{_stated(island, relation, value)}"
        for island in all_islands
        for relation, value in {**island.has, NEIGHBOUR: island.neighbour}.items()
    }


def _stated(island: Island, relation: str, value: str) -> str:
    wordings = NEW_STATED if island.side == "new-wording-test" else STATED
    return _choice(wordings, f"passage {relation} {island.name}").format(relation=relation, island=island.name, value=value)


def island_questions(all_islands: Sequence[Island], first_passage: int) -> dict[str, list[Question]]:
    """Return the questions of one and two hops, and those of three hops, by list.

    The three-hop lists are named "islands-three-hops-...", see `deep_lists`.

    Args:
        all_islands: All islands.
        first_passage: The passage number of the first of their `passages`.
    """
    numbers = {key: number for number, key in enumerate(passages(all_islands), first_passage)}
    by_name = {island.name: island for island in all_islands}

    of_side: dict[str, list[Question]] = {side: [] for side in SIDES}
    for island in all_islands:
        of_side[island.side] += _questions(island, by_name, numbers)

    def asked(side: str, hop_counts: Sequence[int], held_out_templates: bool) -> list[Question]:
        chosen = [each for each in of_side[side] if len(each.hops) in hop_counts and is_held_out(each.group) == held_out_templates]
        chosen.sort(key=lambda question: shuffle_key("island question", question.question))
        return chosen if side in ("lessons", "train") else _balanced(chosen, hop_counts)[:HELD_OUT_TASKS]

    return {
        **{f"{COLLECTION}-{side}": asked(side, (1, 2), False) for side in SIDES},
        **{f"{COLLECTION}-new-templates-{side}": asked(side, (2,), True) for side in NEW_TEMPLATES},
        **{f"{COLLECTION}-three-hops-{side}": asked(side, (3,), False) for side in SIDES},
    }


def is_held_out(template: str) -> bool:
    """Whether demonstrations and training lack a template.

    Example: "island > neighbour > lake" is held out.
    """
    return NEIGHBOUR in template and not template.endswith(SHOWN_OF_NEIGHBOURS)


def deep_lists(lists: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return the lists of one to three hops, combined from the islands' lists.

    Evaluation lists hold equally many questions of each hop count.
    """
    found = {}
    for side in SIDES:
        shallow, deep = lists[f"{COLLECTION}-{side}"], lists[f"{COLLECTION}-three-hops-{side}"]
        if side not in ("lessons", "train"):
            shallow, deep = shallow[: HELD_OUT_TASKS * 2 // MOST_HOPS], deep[: HELD_OUT_TASKS // MOST_HOPS]
        found[f"{COLLECTION}-deep-{side}"] = [*shallow, *deep]
    return found


def _questions(island: Island, by_name: Mapping[str, Island], numbers: Mapping[tuple[str, str], int]) -> Iterator[Question]:
    """Yield questions about the island, its neighbour and the neighbour's neighbour."""
    of, asked_of, path, hops = island, island.name, "island", list[Hop]()
    for _ in range(MOST_HOPS):
        for relation, value in of.has.items():
            asked = f"{relation} of {asked_of}"
            wording = _choice(NEW_ASKED if island.side == "new-wording-test" else ASKED, f"question {asked}")
            found_by = Hop(f"{relation} of {of.name}", numbers[of.name, relation])
            yield Question(wording.format(asked), (value,), f"{path} > {relation}", (*hops, found_by), COLLECTION)
        hops.append(Hop(f"{NEIGHBOUR} of {of.name}", numbers[of.name, NEIGHBOUR]))
        of, asked_of, path = by_name[of.neighbour], f"the {NEIGHBOUR} of {asked_of}", f"{path} > {NEIGHBOUR}"


def _balanced(asked: Sequence[Question], hop_counts: Sequence[int]) -> list[Question]:
    """Take one question of each hop count in turn."""
    of_count = ([question for question in asked if len(question.hops) == hops] for hops in hop_counts)
    return [question for some in zip(*of_count, strict=False) for question in some]


def _choice(some: Sequence[str], purpose: str) -> str:
    return some[int(hashed_fraction("island", purpose) * len(some))]
