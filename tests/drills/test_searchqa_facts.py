"""Tests of the embedded questions, their passages and their task lists."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from environments.searchqa import TASK_LISTS
from environments.searchqa.corpus import Corpus, Question
from environments.searchqa.facts.relations import RELATIONS
from environments.searchqa.scoring import exact_match, normalise
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tests.support.processes import run_module

# Version of the content that the locked packages give. If this fails, an index means another
# question, or a search finds other passages.
CONTENT = "facts-d7af529cb4ea"


@pytest.fixture(scope="module")
def world() -> SearchQA:
    return SearchQA(Settings(cache=Settings.read().cache))


@pytest.fixture(scope="module")
def corpus(world: SearchQA) -> Corpus:
    return world.create()._corpus


@pytest.fixture(scope="module")
def questions(corpus: Corpus) -> list[Question]:
    return [corpus.question(index) for index in range(12_000)]


def test_the_content_is_the_same_on_every_machine(world: SearchQA) -> None:
    assert world.version == f"{CONTENT}-strict"


def test_the_world_has_the_lists_that_the_package_names(world: SearchQA) -> None:
    assert set(TASK_LISTS) == set(world.lists)


@pytest.mark.slow
def test_the_content_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    options = ("facts", "--output", str(tmp_path / "facts"))
    run_module("environments.searchqa.build", *options, PYTHONHASHSEED="7")
    assert json.loads((tmp_path / "facts" / "library.json").read_bytes())["version"] == CONTENT


def test_the_corpus_has_12000_questions_over_168942_passages(
    corpus: Corpus, questions: list[Question]
) -> None:
    assert corpus.about.passages == 150_000 + 18_942
    assert Counter(len(question.hops) for question in questions) == {1: 3000, 2: 5000, 3: 4000}
    templates = Counter(question.group for question in questions)
    assert len(templates) > 200
    assert max(templates.values()) < 100
    assert len({normalise(question.question) for question in questions}) == 12_000


def test_the_last_passage_of_a_question_states_its_answer(
    corpus: Corpus, questions: list[Question]
) -> None:
    for question in questions:
        stated = f" {normalise(corpus.passage(question.hops[-1].passage))} "
        assert f" {normalise(question.answers[0])} " in stated, question


def test_no_question_contains_its_answer(questions: list[Question]) -> None:
    for question in questions:
        text = f" {normalise(question.question)} "
        assert not any(f" {normalise(answer)} " in text for answer in question.answers), question


def test_every_hop_is_a_new_passage_found_by_known_names(
    corpus: Corpus, questions: list[Question]
) -> None:
    relation_words = {
        word
        for relation in RELATIONS.values()
        for word in normalise(f"{relation.search} {relation.described}").split()
    }
    relation_words |= {"borders", "by", "land"}
    for question in questions:
        assert len({hop.passage for hop in question.hops}) == len(question.hops)
        known = normalise(question.question)
        for hop in question.hops:
            assert all(
                name in known for name in normalise(hop.query).split() if name not in relation_words
            ), question
            known += " " + normalise(corpus.passage(hop.passage))


def test_splits_cover_all_questions_and_share_no_start_entity(
    world: SearchQA, corpus: Corpus, questions: list[Question]
) -> None:
    splits = {name: world.tasks(name) for name in ("train", "validation", "test")}
    assert sorted(index for some in splits.values() for index in some) == list(range(12_000))
    assert [len(some) for some in splits.values()] == [9145, 618, 2237]
    starts: dict[int, set[str]] = defaultdict(set)
    for name, some in splits.items():
        for index in some:
            if not questions[index].group.startswith(
                "by neighbours"
            ):  # these start from two countries, which other questions may share
                starts[questions[index].hops[0].passage].add(name)
    assert all(len(names) == 1 for names in starts.values())


def test_no_pair_of_neighbours_occurs_in_two_splits(
    world: SearchQA, questions: list[Question]
) -> None:
    pairs: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for name in ("train", "validation", "test"):
        for index in world.tasks(name):
            if questions[index].group.startswith("by neighbours"):
                pairs[tuple(hop.passage for hop in questions[index].hops[:2])].add(name)
    assert len(pairs) > 50
    assert all(len(names) == 1 for names in pairs.values())


def test_some_templates_occur_only_in_the_test_split(
    world: SearchQA, questions: list[Question]
) -> None:
    learned = {
        questions[index].group for split in ("train", "validation") for index in world.tasks(split)
    }
    new = world.tasks("new-templates")
    assert set(new) == {
        index for index in world.tasks("test") if questions[index].group not in learned
    }
    assert len({questions[index].group for index in new}) > 10
    relations = {step for group in learned for step in group.split(" > ")}
    assert all(step in relations for index in new for step in questions[index].group.split(" > "))


def test_the_evaluation_list_has_400_test_questions_of_every_length(
    world: SearchQA, questions: list[Question]
) -> None:
    some = world.tasks("searchqa-ours-400")
    assert len(set(some)) == 400
    assert set(some) <= set(world.tasks("test"))
    assert set(Counter(len(questions[index].hops) for index in some)) == {1, 2, 3}
    assert min(Counter(len(questions[index].hops) for index in some).values()) > 100


def test_lists_by_hops_hold_the_questions_of_that_length(
    world: SearchQA, questions: list[Question]
) -> None:
    for hops in (1, 2, 3):
        assert world.tasks(f"hops-{hops}") == tuple(
            index for index in range(12_000) if len(questions[index].hops) == hops
        )


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_oracle_answers_after_at_most_one_search_per_hop(
    world: SearchQA, questions: list[Question], split: str
) -> None:
    session = world.create()
    for index in world.tasks(split)[:100]:
        session.reset(index)
        searches = 0
        while "<search>" in (action := session.oracle_action()):
            session.step(action)
            searches += 1
        assert session.step(action).reward == 1.0
        assert searches <= len(questions[index].hops)  # one search may find two passages


def test_other_names_of_an_answer_are_accepted(questions: list[Question]) -> None:
    by_answer = {question.answers[0]: question.answers for question in questions}
    assert exact_match("united states of america", by_answer["United States"])
    assert exact_match("Federal Republic of Germany", by_answer["Germany"])
    assert exact_match("Brasília", by_answer["Brasília"])
    assert exact_match("brasilia", by_answer["Brasília"])
    assert not exact_match("Franc", by_answer["Swiss Franc"])
