"""Tests of questions about made-up islands: held-out islands and relations, search and oracle."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from environments.searchqa import RELATIONS
from environments.searchqa.corpus import Corpus, Question
from environments.searchqa.facts.islands import (
    HELD_OUT_TASKS,
    HOME_NAMES,
    LEARNED,
    NEIGHBOUR_NAMES,
    SIDES,
    VALUES,
    island_of,
    islands,
)
from environments.searchqa.retrieval.bm25 import _analyzer
from environments.searchqa.scoring import normalise
from environments.searchqa.scripts import CHOICES, READER
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tasks.evaluation.baselines import baselines

HELD_OUT = ("validation", "test")


@pytest.fixture(scope="module")
def world() -> SearchQA:
    return SearchQA(Settings(cache=Settings.read().cache))


@pytest.fixture(scope="module")
def questions_by_side(world: SearchQA) -> dict[str, list[Question]]:
    corpus = corpus_of(world)
    return {
        side: [corpus.question(index) for index in world.tasks(f"islands-{side}")] for side in SIDES
    }


def corpus_of(world: SearchQA) -> Corpus:
    return world.create()._corpus


def test_lists_share_no_island(
    questions_by_side: dict[str, list[Question]],
) -> None:
    sides = {island.name: island.side for island in islands()}
    assert len(sides) == len(islands()) == 2 * sum(SIDES.values())
    for side, questions in questions_by_side.items():
        assert {sides[island_of(question)] for question in questions} == {side}


def test_lessons_are_many_and_held_out_lists_balance_one_and_two_hops(
    questions_by_side: dict[str, list[Question]],
) -> None:
    assert len(questions_by_side["lessons"]) > 10_000
    assert len(questions_by_side["train"]) > 5000
    for side in HELD_OUT:
        assert Counter(len(question.hops) for question in questions_by_side[side]) == dict.fromkeys(
            (1, 2), HELD_OUT_TASKS // 2
        )


@pytest.mark.parametrize("relation", RELATIONS)
def test_questions_for_a_neighbours_held_out_relation_are_only_in_its_lists(
    world: SearchQA, relation: str
) -> None:
    def groups(name: str) -> set[str]:
        return {corpus_of(world).question(index).group for index in world.tasks(name)}

    held_out = f"island > neighbour > {relation}"
    for side in SIDES:
        without = groups(f"islands-no-{relation}-{side}")
        assert held_out not in without
        assert f"island > {relation}" in without
        assert held_out in groups(f"islands-{side}")
    for side in HELD_OUT:
        assert groups(f"islands-{relation}-{side}") == {held_out}
    assert set(LEARNED) | set(HELD_OUT) == set(SIDES)


def test_the_last_passage_states_the_answer_and_the_question_does_not(
    questions_by_side: dict[str, list[Question]], world: SearchQA
) -> None:
    for question in chain.from_iterable(questions_by_side.values()):
        assert (
            f" {normalise(question.answers[0])} "
            in f" {normalise(corpus_of(world).passage(question.hops[-1].passage))} "
        )
        assert normalise(question.answers[0]) not in normalise(question.question)


def test_half_of_the_passages_name_the_answer_before_the_island(
    questions_by_side: dict[str, list[Question]], world: SearchQA
) -> None:
    texts = [
        corpus_of(world).passage(question.hops[-1].passage).partition("\n")[2]
        for question in questions_by_side["test"]
    ]
    assert 0.35 < sum(text.startswith("The ") for text in texts) / len(texts) < 0.65


@pytest.mark.parametrize("name", [f"islands-{side}" for side in SIDES])
def test_the_oracle_searches_once_per_hop_states_its_finding_and_is_right(
    world: SearchQA, name: str
) -> None:
    session = world.create()
    tasks = world.tasks(name)
    for index in Random(0).sample(tasks, min(200, len(tasks))):
        session.reset(index)
        hops = session.task.hops if session.task else ()
        for found, hop in enumerate(hops):
            assert session.oracle_thought() == (hops[found - 1].finds if found else "")
            assert session.oracle_action() == f"<search>{hop.query}</search>"
            session.step(session.oracle_action())
        assert session.task is not None
        assert session.task.answers[0] in session.oracle_thought()
        assert session.step(session.oracle_action()).reward == 1.0


@pytest.mark.parametrize("side", SIDES)
def test_right_passage_has_a_random_place_which_determines_the_tag_of_a_task(
    world: SearchQA, side: str
) -> None:
    session, places, kinds = world.create(), Counter[int](), Counter[str]()
    for index in Random(0).sample(world.tasks(f"islands-{side}"), 100):
        session.reset(index)
        assert session.task is not None
        here = []
        for hop in session.task.hops:
            shown = (
                session.step(f"<search>{hop.query}</search>")
                .observation.removeprefix("<information>")
                .split("\n")
            )
            text = corpus_of(world).passage(hop.passage).partition("\n")[2]
            here.append(next(place for place, line in enumerate(shown) if text in line))
        places.update(here)
        kind = "right passage first" if set(here) == {0} else "right passage not first"
        assert world.tag(index) == kind
        kinds[kind] += 1
    assert set(places) == {0, 1, 2}
    assert min(places.values()) > places.total() / 5
    assert kinds["right passage not first"] > 60


@pytest.mark.parametrize("name", ["islands-no-lake-validation", "islands-lake-validation"])
def test_only_the_script_that_compares_words_solves_the_questions(
    world: SearchQA, name: str, tmp_path: Path
) -> None:
    found = baselines(
        "searchqa", world.tasks(name), world.tasks("islands-no-lake-train")[:50], 6, tmp_path
    )
    assert {*CHOICES} <= {*found}
    assert found[READER].success.value == 1.0
    assert (
        max(
            result.success.value
            for policy, result in found.items()
            if policy not in (READER, "oracle")
        )
        < 0.3
    )


def test_only_island_questions_search_the_islands(world: SearchQA) -> None:
    session = world.create()
    session.reset(world.tasks("islands-test")[0])
    assert (
        session.step("<search>Germany</search>").observation
        == "<information>No passage was found.</information>"
    )
    session.reset(world.tasks("test")[0])
    assert "(Title: Germany)" in session.step("<search>Germany</search>").observation
    name = islands()[0].name
    assert name not in session.step(f"<search>{name}</search>").observation


def test_the_search_engine_distinguishes_all_names() -> None:
    words = [
        word
        for name in (*HOME_NAMES, *NEIGHBOUR_NAMES, *VALUES)
        for word in _analyzer().analyze(name)
    ]
    assert len(set(words)) == len(HOME_NAMES) + len(NEIGHBOUR_NAMES) + len(VALUES)
