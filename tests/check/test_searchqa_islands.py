"""Questions about made-up islands: each island on one side only, found by the search engine, answered by what is read."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from random import Random

import pytest

from environments.searchqa.corpus import Corpus, Question
from environments.searchqa.facts.islands import HELD_OUT_TASKS, NAMES, NEW_STATED, NEW_TEMPLATES, SIDES, STATED, VALUES, islands
from environments.searchqa.retrieval.bm25 import _analyzer
from environments.searchqa.scoring import normalise
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA

HELD_OUT = ("validation", "test", "new-wording-test")


@pytest.fixture(scope="module")
def world() -> SearchQA:
    return SearchQA(Settings(cache=Settings.read().cache))


@pytest.fixture(scope="module")
def asked(world: SearchQA) -> dict[str, list[Question]]:
    corpus = corpus_of(world)
    return {side: [corpus.question(index) for index in world.tasks(f"islands-{side}")] for side in SIDES}


def corpus_of(world: SearchQA) -> Corpus:
    return world.create()._corpus


def about(question: Question) -> set[str]:
    """The islands that its searches name."""
    return {hop.query.partition(" of ")[2] for hop in question.hops}


def test_no_two_lists_ask_about_the_same_island(world: SearchQA) -> None:
    named = {}
    for side in SIDES:
        names = ["islands", "islands-three-hops", "islands-deep", *["islands-new-templates"] * (side in NEW_TEMPLATES)]
        tasks = (index for name in names for index in world.tasks(f"{name}-{side}"))
        named[side] = set().union(*(about(corpus_of(world).question(index)) for index in tasks))
    assert sum(map(len, named.values())) == len(set().union(*named.values()))
    sides = {island.name: island.side for island in islands()}
    assert all(sides[name] == side for side, names in named.items() for name in names)


def test_there_are_thousands_of_lessons_and_held_out_lists_ask_as_often_for_one_hop_as_for_two(asked: dict[str, list[Question]]) -> None:
    assert len(asked["lessons"]) > 3500
    assert len(asked["train"]) > 2300
    for side in HELD_OUT:
        assert Counter(len(question.hops) for question in asked[side]) == dict.fromkeys((1, 2), HELD_OUT_TASKS // 2)
    assert len({normalise(question.question) for some in asked.values() for question in some}) == sum(map(len, asked.values()))


@pytest.mark.parametrize("side", NEW_TEMPLATES)
def test_new_templates_are_in_no_lesson_and_no_training_task_and_what_they_are_made_of_is(
    asked: dict[str, list[Question]], world: SearchQA, side: str
) -> None:
    new = [corpus_of(world).question(index) for index in world.tasks(f"islands-new-templates-{side}")]
    assert len(new) == HELD_OUT_TASKS
    held_out = {question.group for question in new}
    assert held_out == {"island > neighbour > lake", "island > neighbour > peak"}
    shown = {question.group for name in ("lessons", "train") for question in asked[name]}
    assert not held_out & shown
    assert {"island > lake", "island > peak", "island > neighbour > castle"} <= shown


def test_deep_lists_ask_as_often_for_one_hop_as_for_two_and_three(world: SearchQA) -> None:
    for side in SIDES:
        counts = Counter(world.tag(index) for index in world.tasks(f"islands-deep-{side}"))
        assert set(counts) == {"hops 1", "hops 2", "hops 3"}
        if side in HELD_OUT:
            assert set(counts.values()) == {HELD_OUT_TASKS // 3}


def test_the_last_passage_states_the_answer_and_the_question_does_not(asked: dict[str, list[Question]], world: SearchQA) -> None:
    for question in chain.from_iterable(asked.values()):
        assert f" {normalise(question.answers[0])} " in f" {normalise(corpus_of(world).passage(question.hops[-1].passage))} "
        assert normalise(question.answers[0]) not in normalise(question.question)


@pytest.mark.parametrize(
    "name",
    [f"{name}-{side}" for name in ("islands", "islands-three-hops") for side in SIDES]
    + [f"islands-new-templates-{side}" for side in NEW_TEMPLATES],
)
def test_the_oracle_searches_once_a_hop_and_is_right(world: SearchQA, name: str) -> None:
    session = world.create()
    tasks = world.tasks(name)
    for index in Random(0).sample(tasks, min(200, len(tasks))):
        session.reset(index)
        hops = len(session.task.hops) if session.task else 0
        for _ in range(hops):
            action = session.oracle_action()
            assert action.startswith("<search>")
            session.step(action)
        assert session.step(session.oracle_action()).reward == 1.0


def test_the_first_passage_is_now_and_then_about_another_island(world: SearchQA) -> None:
    session, first = world.create(), []
    for index in world.tasks("islands-test"):
        session.reset(index)
        assert session.task is not None
        hop = session.task.hops[0]
        shown = session.step(f"<search>{hop.query}</search>").observation
        first.append(f"Doc 1(Title: {hop.query.partition(' of ')[2]})" in shown)
    assert 0.7 < sum(first) / len(first) < 0.98


def test_the_last_list_is_worded_like_no_other_of_words_that_lessons_have(asked: dict[str, list[Question]], world: SearchQA) -> None:
    def words(question: Question) -> set[str]:
        return {
            word for text in (question.question, *(corpus_of(world).passage(hop.passage) for hop in question.hops)) for word in text.split()
        }

    new = asked["new-wording-test"]
    assert all(question.question.startswith("Tell me the name of the ") for question in new)
    assert not any(
        question.question.startswith("Tell me the name of ") for side in SIDES if side != "new-wording-test" for question in asked[side]
    )
    assert all("The name of the" in corpus_of(world).passage(hop.passage) for question in new for hop in question.hops)
    assert not set(NEW_STATED) & set(STATED)
    learned = set().union(*map(words, asked["lessons"]))
    assert {word.strip("?.") for question in new for word in words(question)} <= {word.strip("?.") for word in learned}


def test_islands_are_searched_for_their_own_questions_alone(world: SearchQA) -> None:
    session = world.create()
    session.reset(world.tasks("islands-test")[0])
    assert session.step("<search>Germany</search>").observation == "<information>No passage was found.</information>"
    session.reset(world.tasks("test")[0])
    assert "(Title: Germany)" in session.step("<search>Germany</search>").observation
    name = islands()[0].name
    assert name not in session.step(f"<search>{name}</search>").observation


def test_the_search_engine_tells_all_names_apart() -> None:
    words = [word for name in (*NAMES, *VALUES) for word in _analyzer().analyze(name)]
    assert len(set(words)) == len(NAMES) + len(VALUES)
