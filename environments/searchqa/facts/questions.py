"""Multi-hop questions: a thing, named or described, and relations followed from it, each step stated by a passage.

Every step leads to exactly one thing, so a question has one answer (under all the names that it goes by), and whether an answer
is right can be checked by machine. A question's hops are the passages that it takes; no two of them are the same.
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
"""Share of the templates that only the test split has."""
MAX_STEPS = 3
_ROUNDABOUT = ("airport city", "city country")
"""Not followed: the airport's own passage names the country."""

Hop = tuple[str, int]
"""What to search for, and the number of the passage to find."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question.

    Attributes:
        template: What is followed, e.g. "IATA > airport country > capital".
        start: What it starts from. Questions that start from the same thing are of the same split.
        split: Which.
        question: The text.
        answers: All that is right.
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
    """A thing as a question introduces it, with the searches that tell which thing is meant."""

    start: str
    thing: Thing
    phrase: str
    hops: tuple[Hop, ...] = ()


def questions(facts: Facts, is_found: Callable[[Hop], bool]) -> Iterator[Draft]:
    """As many questions as `QUESTIONS_BY_HOPS` asks for, spread evenly over the templates.

    Args:
        facts: What is known.
        is_found: Whether a hop's search finds its passage. Questions of which it does not are left out.
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
            elif (said := normalise(draft.question)) not in asked and all(is_found(hop) for hop in draft.hops):
                asked.add(said)
                left[len(draft.hops)] -= 1
                yield draft


def _chains(kind: str, passed: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Relations that can be followed one after another from a thing of that kind, never back to a kind; the empty chain too."""
    yield ()
    if len(passed) == MAX_STEPS:
        return
    for name, relation in RELATIONS.items():
        if relation.subject == kind and relation.object not in passed:
            for rest in _chains(relation.object, passed | {kind}):
                if (name, *rest[:1]) != _ROUNDABOUT:
                    yield (name, *rest)


def _beginnings(facts: Facts) -> dict[str, list[_Beginning]]:
    """Things to start from, by how the question introduces them, in a shuffled order."""
    titles = Counter(normalise(contents.partition("\n")[0]) for contents in facts.passages)
    subjects: dict[str, set[Thing]] = defaultdict(set)
    for name, relation in RELATIONS.items():
        subjects[relation.subject].update(thing for thing in facts.objects[name] if thing.kind == relation.subject)
    found: dict[str, list[_Beginning]] = {}
    for kind, things in subjects.items():
        names = Counter(normalise(thing.name) for thing in things)
        # Where a name is that of several things, or of a passage about something else, nobody could tell which is meant.
        clear = [thing for thing in things if names[normalise(thing.name)] == 1 and titles[normalise(thing.name)] <= 1]
        found[kind] = [_Beginning(f"{kind} {thing.key}", thing, _label(thing)) for thing in clear]
    for name, relation in RELATIONS.items():
        if relation.described:
            names = Counter(normalise(thing.name) for thing in facts.subjects[name])
            found[f"by {name}"] = [
                _Beginning(f"{subject.kind} {subject.key}", subject, phrase, ((phrase.removeprefix("the "), passage),))
                for told, some in facts.subjects[name].items()
                if len(some) == 1 and names[normalise(told.name)] == 1
                for subject, passage in some
                if subject.kind == relation.subject and (phrase := relation.described.format(told.name))
            ]
    found["by neighbours"] = list(_shared_neighbours(facts))
    return {name: sorted(some, key=lambda beginning: shuffle_key(name, beginning.start)) for name, some in found.items() if some}


def _label(thing: Thing) -> str:
    return in_text(thing) if thing.kind == "country" else LABELS.get(thing.kind, "{}").format(thing.name)


def _shared_neighbours(facts: Facts) -> Iterator[_Beginning]:
    """Countries told by two others of which they are the only common neighbour."""
    neighbours = facts.objects["neighbour"]
    for one, other in combinations(sorted(neighbours, key=lambda country: country.key), 2):
        common = {country for country, _ in neighbours[one]} & {country for country, _ in neighbours[other]}
        if len(common) == 1:
            hops = tuple((f"{country.name} borders by land", neighbours[country][0][1]) for country in (one, other))
            phrase = f"the country that borders both {in_text(one)} and {in_text(other)}"
            yield _Beginning(f"neighbours {one.key} {other.key}", common.pop(), phrase, hops)


def _drafts(facts: Facts, template: str, beginnings: Sequence[_Beginning], steps: Sequence[str]) -> Iterator[Draft]:
    held_out = len(steps) > 1 and hashed_fraction("held out", template) < HELD_OUT_SHARE
    first = int(hashed_fraction("first", template) * len(beginnings))
    for beginning in (*beginnings[first:], *beginnings[:first]):
        split = _split(beginning.start)
        if not held_out or split == "test":
            draft = _follow(facts, template, split, beginning, steps)
            if draft is not None:
                yield draft


def _follow(facts: Facts, template: str, split: str, beginning: _Beginning, steps: Sequence[str]) -> Draft | None:
    """The question that the steps lead to; None where they lead nowhere, to several things, or to what the question gives away."""
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
            named = thing.name if position == 0 and not hops else f"{thing.name} {thing.hint}".rstrip()
            hops.append((relation.search.format(named), passage))
        asks = [ask.format(phrase) for ask in relation.ask]
        thing, phrase = target, relation.phrase.format(phrase)
        passed.append(thing)
    question = min(asks, key=lambda ask: shuffle_key("wording", ask))
    said = f" {normalise(question)} "
    if any(f" {normalise(name)} " in said for thing in passed for name in (thing.name, *thing.aliases)):
        return None
    if len({passage for _, passage in hops}) < len(hops):
        return None
    return Draft(template, beginning.start, split, question[0].upper() + question[1:], (thing.name, *thing.aliases), tuple(hops))


def _split(start: str) -> str:
    place = hashed_fraction("split", start)
    return "test" if place < TEST_SHARE else "validation" if place < TEST_SHARE + VALIDATION_SHARE else "train"
