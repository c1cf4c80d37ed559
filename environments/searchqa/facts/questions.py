"""Multi-hop questions: an entity, named or described, and a chain of relations followed from it.

A passage states each step, and each step leads to exactly one entity. A question therefore has one
answer, under all its aliases, and an answer can be checked automatically. A question's hops are
the passages that it takes, all of them different.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from environments.searchqa.facts.geography import in_text
from environments.searchqa.facts.model import Facts, Thing
from environments.searchqa.facts.relations import LABELS, RELATIONS
from environments.searchqa.sampling import hashed_fraction, shuffle_key
from environments.searchqa.scoring import normalise

QUESTIONS_BY_HOPS = {1: 3000, 2: 5000, 3: 4000}
TEST_SHARE, VALIDATION_SHARE = 0.15, 0.05
HELD_OUT_SHARE = 0.1
"""Fraction of the multi-step templates that only the test split uses."""
MAX_STEPS = 3
_ROUNDABOUT = ("airport city", "city country")
"""Never followed, because the airport's own passage already names the country."""

Hop = tuple[str, int]
"""A search query and the number of the passage to find."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question.

    Attributes:
        template: The chain of relations, e.g. "IATA > airport country > capital".
        start: The entity that it starts from. Questions with the same start are in the same split.
        split: "train", "validation" or "test".
        answers: All correct answers.
        hops: The searches that it takes.
    """

    template: str
    start: str
    split: str
    question: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class _Beginning:
    """An entity as a question introduces it, with the searches that identify it."""

    start: str
    thing: Thing
    phrase: str
    hops: tuple[Hop, ...] = ()


def questions(facts: Facts, is_found: Callable[[Hop], bool]) -> Iterator[Draft]:
    """Yield up to `QUESTIONS_BY_HOPS` questions per hop count, spread evenly over the templates.

    Args:
        is_found: Whether a hop's search finds its passage. Questions with a failing hop are
            dropped.
    """
    streams = {
        template: _drafts(facts, template, some, steps)
        for name, some in sorted(_beginnings(facts).items())
        for steps in _chains(some[0].thing.kind)
        if (template := " > ".join((name, *steps))) and (steps or some[0].hops)
    }
    asked: set[str] = set()
    left = dict(QUESTIONS_BY_HOPS)
    while streams:
        for template, stream in list(streams.items()):
            draft = next(stream, None)
            if draft is None or not left.get(len(draft.hops)):
                del streams[template]
            elif (text := normalise(draft.question)) not in asked and all(
                is_found(hop) for hop in draft.hops
            ):
                asked.add(text)
                left[len(draft.hops)] -= 1
                yield draft


def _chains(kind: str, passed: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Yield every chain of relations from an entity of that kind, including the empty one.

    A chain never returns to a kind and has at most `MAX_STEPS` relations.
    """
    yield ()
    if len(passed) == MAX_STEPS:
        return
    for name, relation in RELATIONS.items():
        if relation.subject == kind and relation.object not in passed:
            for rest in _chains(relation.object, passed | {kind}):
                if (name, *rest[:1]) != _ROUNDABOUT:
                    yield (name, *rest)


def _beginnings(facts: Facts) -> dict[str, list[_Beginning]]:
    """Return shuffled start entities, by the way in which the question introduces them."""
    titles = Counter(normalise(contents.partition("\n")[0]) for contents in facts.passages)
    subjects: dict[str, set[Thing]] = defaultdict(set)
    for name, relation in RELATIONS.items():
        subjects[relation.subject].update(
            thing for thing in facts.objects[name] if thing.kind == relation.subject
        )
    found: dict[str, list[_Beginning]] = {}
    for kind, things in subjects.items():
        names = Counter(normalise(thing.name) for thing in things)
        # A name shared by several entities, or by an unrelated passage, would be ambiguous.
        clear = [
            thing
            for thing in things
            if names[normalise(thing.name)] == 1 and titles[normalise(thing.name)] <= 1
        ]
        found[kind] = [_Beginning(f"{kind} {thing.key}", thing, _label(thing)) for thing in clear]
    for name, relation in RELATIONS.items():
        if relation.described:
            names = Counter(normalise(thing.name) for thing in facts.subjects[name])
            found[f"by {name}"] = [
                _Beginning(
                    f"{subject.kind} {subject.key}",
                    subject,
                    phrase,
                    ((phrase.removeprefix("the "), passage),),
                )
                for described, some in facts.subjects[name].items()
                if len(some) == 1 and names[normalise(described.name)] == 1
                for subject, passage in some
                if subject.kind == relation.subject
                and (phrase := relation.described.format(described.name))
            ]
    found["by neighbours"] = list(_shared_neighbours(facts))
    return {
        name: sorted(some, key=lambda beginning: shuffle_key(name, beginning.start))
        for name, some in found.items()
        if some
    }


def _label(thing: Thing) -> str:
    if thing.kind == "country":
        return in_text(thing)
    return LABELS.get(thing.kind, "{}").format(thing.name)


def _shared_neighbours(facts: Facts) -> Iterator[_Beginning]:
    """Yield countries that are the only common neighbour of two other countries."""
    neighbours = facts.objects["neighbour"]
    for one, other in combinations(sorted(neighbours, key=lambda country: country.key), 2):
        common = {country for country, _ in neighbours[one]} & {
            country for country, _ in neighbours[other]
        }
        if len(common) == 1:
            hops = tuple(
                (f"{country.name} borders by land", neighbours[country][0][1])
                for country in (one, other)
            )
            phrase = f"the country that borders both {in_text(one)} and {in_text(other)}"
            yield _Beginning(f"neighbours {one.key} {other.key}", common.pop(), phrase, hops)


def _drafts(
    facts: Facts, template: str, beginnings: Sequence[_Beginning], steps: Sequence[str]
) -> Iterator[Draft]:
    held_out = len(steps) > 1 and hashed_fraction("held out", template) < HELD_OUT_SHARE
    first = int(hashed_fraction("first", template) * len(beginnings))
    for beginning in (*beginnings[first:], *beginnings[:first]):
        split = _split(beginning.start)
        if not held_out or split == "test":
            draft = _follow(facts, template, split, beginning, steps)
            if draft is not None:
                yield draft


def _follow(
    facts: Facts, template: str, split: str, beginning: _Beginning, steps: Sequence[str]
) -> Draft | None:
    """Return the question of a chain of relations, or None.

    It returns None in three cases:

    - A step has no target or several.
    - The question's text contains the answer or an intermediate result.
    - Two hops share a passage.
    """
    thing, phrase, hops, passed = beginning.thing, beginning.phrase, list(beginning.hops), []
    asks: Sequence[str] = (f"What is {phrase}?", f"Name {phrase}.")
    if hops:
        passed.append(thing)
    for position, step in enumerate(steps):
        relation, reached = RELATIONS[step], facts.objects[step].get(thing, ())
        if thing.kind != relation.subject or len(reached) != 1:
            return None
        [(target, passage)] = reached
        if not hops or hops[-1][1] != passage:
            named = (
                thing.name if position == 0 and not hops else f"{thing.name} {thing.hint}".rstrip()
            )
            hops.append((relation.search.format(named), passage))
        asks = [ask.format(phrase) for ask in relation.ask]
        thing, phrase = target, relation.phrase.format(phrase)
        passed.append(thing)
    question = min(asks, key=lambda ask: shuffle_key("wording", ask))
    padded = f" {normalise(question)} "
    if any(
        f" {normalise(name)} " in padded
        for thing in passed
        for name in (thing.name, *thing.aliases)
    ):
        return None
    if len({passage for _, passage in hops}) < len(hops):
        return None
    return Draft(
        template,
        beginning.start,
        split,
        question[0].upper() + question[1:],
        (thing.name, *thing.aliases),
        tuple(hops),
    )


def _split(start: str) -> str:
    place = hashed_fraction("split", start)
    if place < TEST_SHARE:
        return "test"
    if place < TEST_SHARE + VALIDATION_SHARE:
        return "validation"
    return "train"
