"""Made-up islands: passages of one fact each, few words, and questions of one to three hops that only searching and reading can answer.

The other embedded questions have the words of a whole geography, too many for a policy of a million weights. An island's name is two
words, its facts are drawn, and no island is on two sides: a held-out question is about a name and facts that no lesson asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from environments.searchqa.corpus import Hop, Question
from environments.searchqa.sampling import hashed_fraction, shuffle_key

COLLECTION = "islands"
SIDES = {"lessons": 1000, "train": 640, "validation": 120, "test": 120, "new-wording-test": 120}
"""How many islands each list's questions are about."""
HELD_OUT_TASKS = 120
"""Questions of each list to measure on, as many of each number of hops that the list has."""
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
"""What an island may have, and how its name begins."""
NEIGHBOUR = "neighbour"
MOST_HOPS = 3
SHOWN_OF_NEIGHBOURS = ("capital", "castle", "harbour")
"""What lessons and training ask about an island's neighbours. Their lakes and peaks are templates that are held out."""
NEW_TEMPLATES = ("validation", "test")
"""Sides of which there is a list of held-out templates, too."""
ASKED = ("What is the {}?", "Tell me the {}.", "What is the name of the {}?")
STATED = ("The {relation} of {island} is {value}.", "{island} has the {relation} {value}.")
NEW_ASKED = ("Tell me the name of the {}.",)
NEW_STATED = ("The name of the {relation} of {island} is {value}.",)
"""Wordings of the last list alone; each word of them is in the others."""


@dataclass(frozen=True, slots=True)
class Island:
    """An island.

    Attributes:
        name: Two words.
        side: Which list asks about it.
        has: By relation what it has, e.g. "capital": "Port Habim".
        neighbour: The name of another island of that side.
    """

    name: str
    side: str
    has: dict[str, str]
    neighbour: str


def islands() -> tuple[Island, ...]:
    """All islands, those of a side in a ring of neighbours."""
    names = iter(sorted((" ".join(pair) for pair in permutations(NAMES, 2)), key=lambda name: shuffle_key("island", name)))
    found = []
    for side, count in SIDES.items():
        ring = [next(names) for _ in range(count)]
        found += [Island(name, side, _drawn(name), ring[place - 1]) for place, name in enumerate(ring)]
    return tuple(found)


def _drawn(name: str) -> dict[str, str]:
    """At least one of the relations, each with a value."""
    order = sorted(RELATIONS, key=lambda relation: shuffle_key(name, relation))
    some = sorted(order[: 1 + int(hashed_fraction("how many", name) * len(order))])
    return {relation: f"{RELATIONS[relation]} {_choice(VALUES, f'{relation} of {name}')}" for relation in some}


def passages(all_islands: Sequence[Island]) -> dict[tuple[str, str], str]:
    """The passages, title, line end, text, by the island's name and the relation that they tell."""
    return {
        (island.name, relation): f"{island.name}\n{_stated(island, relation, value)}"
        for island in all_islands
        for relation, value in {**island.has, NEIGHBOUR: island.neighbour}.items()
    }


def _stated(island: Island, relation: str, value: str) -> str:
    wordings = NEW_STATED if island.side == "new-wording-test" else STATED
    return _choice(wordings, f"passage {relation} {island.name}").format(relation=relation, island=island.name, value=value)


def island_questions(all_islands: Sequence[Island], first_passage: int) -> dict[str, list[Question]]:
    """The questions of one and two hops of each list, and those of three hops ("islands-three-hops-..."), see `deep_lists`.

    Args:
        all_islands: All of them.
        first_passage: The number that the first of their `passages` has.
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
    """Whether lessons and training have no question of a template such as "island > neighbour > lake"."""
    return NEIGHBOUR in template and not template.endswith(SHOWN_OF_NEIGHBOURS)


def deep_lists(lists: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Lists of one to three hops, made of those of the islands' questions; to measure on, as many of each."""
    found = {}
    for side in SIDES:
        shallow, deep = lists[f"{COLLECTION}-{side}"], lists[f"{COLLECTION}-three-hops-{side}"]
        if side not in ("lessons", "train"):
            shallow, deep = shallow[: HELD_OUT_TASKS * 2 // MOST_HOPS], deep[: HELD_OUT_TASKS // MOST_HOPS]
        found[f"{COLLECTION}-deep-{side}"] = [*shallow, *deep]
    return found


def _questions(island: Island, by_name: Mapping[str, Island], numbers: Mapping[tuple[str, str], int]) -> Iterator[Question]:
    """What the island has, what its neighbour has, and what that one's neighbour has."""
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
    """One of each number of hops in turn."""
    of_count = ([question for question in asked if len(question.hops) == hops] for hops in hop_counts)
    return [question for some in zip(*of_count, strict=False) for question in some]


def _choice(some: Sequence[str], purpose: str) -> str:
    return some[int(hashed_fraction("island", purpose) * len(some))]
