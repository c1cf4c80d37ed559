"""Tests of playing SearchQA: searches, answers, rewards and settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from environments.environment import (
    EpisodeOverError,
    OracleError,
    SettingsError,
    Step,
    TaskIndexError,
)
from environments.searchqa.corpus import SearchDataError
from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA, SearchQAEnvironment
from environments.task_lists import UnknownTaskListError
from tests.support.tiny_searchqa import tiny_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("tiny"))


def begin(
    corpus: Path, task: int = 0, *, wrong_ends: bool = True, format_reward: float = 0.0
) -> SearchQAEnvironment:
    session = SearchQA(
        Settings(data=corpus, wrong_ends=wrong_ends, format_reward=format_reward)
    ).create()
    session.reset(task)
    return session


def test_episode_with_a_search_and_the_right_answer(corpus: Path) -> None:
    session = SearchQA(Settings(data=corpus)).create()
    assert session.reset(0) == "Question: what is the capital of peru"
    found = session.step("<think>Let me look.</think> <search>capital Peru</search>")
    assert found == Step(
        '<information>Doc 1(Title: "Peru") Peru is a country in South America. Its capital is '
        "Lima.\n"
        'Doc 2(Title: "Lima") Lima is the capital of Peru. It lies on the coast.\n'
        'Doc 3(Title: "Quito") Quito is the capital of Ecuador, high in the Andes.</information>',
        0.0,
        False,
    )
    assert session.step("<answer>the LIMA.</answer>") == Step("The answer is right.", 1.0, True)
    with pytest.raises(EpisodeOverError):
        session.step("<answer>Lima</answer>")


def test_every_gold_answer_is_right(corpus: Path) -> None:
    assert begin(corpus).step("<answer>city of kings</answer>").reward == 1.0


@pytest.mark.parametrize("answer", ["Quito", "Lima Peru", "Lim", "a", "!"])
def test_a_wrong_answer_ends_the_episode_without_reward(corpus: Path, answer: str) -> None:
    session = begin(corpus)
    assert session.step(f"<answer>{answer}</answer>") == Step("The answer is wrong.", 0.0, True)
    with pytest.raises(EpisodeOverError):
        session.step("<answer>Lima</answer>")


def test_guessing_can_be_allowed(corpus: Path) -> None:
    session = begin(corpus, wrong_ends=False)
    assert session.step("<answer>Quito</answer>") == Step(
        "The answer is wrong. Search more or give another answer.", 0.0, False
    )
    assert session.step("<answer>Lima</answer>") == Step("The answer is right.", 1.0, True)


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        (["<search>Peru</search>", "<answer>Lima</answer>"], 1.0),
        (["<answer>Quito</answer>"], 0.2),
        (["<search>Peru", "<answer>Lima</answer>"], 0.8),
        (["Lima?"], 0.0),
        (["<search>Peru</search> hm", "<answer>Lima</answer>"], 0.8),
        (["<search>Peru</search> hm", "<answer>Quito</answer>"], 0.0),
        (["<answer>Quito</answer> perhaps"], 0.0),
    ],
)
def test_format_reward_is_part_of_the_reward(
    corpus: Path, actions: list[str], reward: float
) -> None:
    session = begin(corpus, format_reward=0.2)
    assert sum(session.step(action).reward for action in actions) == pytest.approx(reward)


def test_format_earns_nothing_if_guessing_is_allowed(corpus: Path) -> None:
    session = begin(corpus, wrong_ends=False, format_reward=0.2)
    rewards = [
        session.step(f"<answer>{answer}</answer>").reward
        for answer in ("a b", "c d", "e f", "Lima")
    ]
    assert rewards == [0.0, 0.0, 0.0, 1.0]


def test_instruction_states_the_number_of_attempts(corpus: Path) -> None:
    assert "one attempt" in SearchQA(Settings(corpus)).instruction
    assert "one attempt" not in SearchQA(Settings(corpus, wrong_ends=False)).instruction


def test_the_rules_are_part_of_the_version(corpus: Path) -> None:
    rules = [
        Settings(corpus),
        Settings(corpus, wrong_ends=False),
        Settings(corpus, format_reward=0.1),
        Settings(corpus, format_reward=0.2),
    ]
    versions = [SearchQA(some).version for some in rules]
    assert len(set(versions)) == 4
    assert all(version.startswith("published-") for version in versions)


@pytest.mark.parametrize(
    "query", ["xyzzy", "the of", "!?", "\ud800", "名前", 'AND OR NOT ( ) " + - : ~ * [ ]']
)
def test_a_search_without_results_is_reported(corpus: Path, query: str) -> None:
    step = begin(corpus).step(f"<search>{query}</search>")
    assert step == Step("<information>No passage was found.</information>", 0.0, False)


def test_search_ignores_accents_case_and_word_endings(corpus: Path) -> None:
    session = begin(corpus)
    observations = {
        session.step(f"<search>{query}</search>").observation
        for query in ("São Paulo", "sao PAULO", "largest cities in sao paulo's")
    }
    assert all('Doc 1(Title: "São Paulo")' in observation for observation in observations)


@pytest.mark.parametrize(
    "search",
    [
        "<search>Peru",
        "<Search>Peru</Search>",
        "</search>",
        "<search></search><answer>Lima</answer>",
    ],
)
def test_a_malformed_search_is_refused_and_costs_a_turn(corpus: Path, search: str) -> None:
    session = begin(corpus)
    step = session.step(search)
    assert (step.reward, step.done, step.refused) == (0.0, False, True)
    assert session.step("<answer>Lima</answer>").reward == 1.0


WRONG_FORMS = [
    "Lima",
    "I think it is Lima.",
    "Answer: Lima",
    "<answer>Lima",
    "<Answer>Lima</Answer>",
    "<answer></answer>",
    "",
]


@pytest.mark.parametrize("answer", [*WRONG_FORMS, f"<answer>{'Lima ' * 101}</answer>"])
def test_a_malformed_answer_is_wrong(corpus: Path, answer: str) -> None:
    session = begin(corpus)
    step = session.step(answer)
    assert (step.reward, step.done, step.refused) == (0.0, True, False)
    with pytest.raises(EpisodeOverError):
        session.step("<answer>Lima</answer>")


@pytest.mark.parametrize("rules", ["guessing", "agentgym"])
@pytest.mark.parametrize("answer", WRONG_FORMS)
def test_malformed_answer_is_refused_if_guessing_is_allowed(
    corpus: Path, answer: str, rules: str
) -> None:
    world = (
        SearchQA(Settings(corpus), rules="agentgym")
        if rules == "agentgym"
        else SearchQA(Settings(corpus, wrong_ends=False))
    )
    session = world.create()
    session.reset(0)
    step = session.step(answer)
    assert (step.reward, step.done, step.refused) == (0.0, False, True)
    assert session.step("<answer>Lima</answer>").reward == 1.0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.text()
        | st.text().map(lambda text: f"<search>{text}</search>")
        | st.text().map(lambda text: f"<answer>{text}</answer>")
    )
)
@example(actions=["<search>\x00</search>", "<search>" + "peru " * 90 + "</search>"])
def test_any_text_gets_an_observation_and_the_rewards_stay_within_0_and_1(
    corpus: Path, actions: list[str]
) -> None:
    session = begin(corpus)
    rewards = []
    for action in actions:
        step = session.step(action)
        assert step.observation.encode()
        rewards.append(step.reward)
        if step.done:
            break
    assert sum(rewards) in (0.0, 1.0)


def test_reset_discards_the_previous_episode(corpus: Path) -> None:
    session = begin(corpus, format_reward=0.5)
    session.step("<search>nonsense")
    session.step("<search>capital of Peru</search>")
    session.reset(0)
    assert session.oracle_action().startswith("<search>")
    assert session.step("<answer>Lima</answer>").reward == 1.0


@pytest.mark.parametrize("index", [-1, 2, 3610, 51_712, 10**12])
def test_task_that_was_not_built_is_refused_and_keeps_the_episode(corpus: Path, index: int) -> None:
    session = begin(corpus)
    with pytest.raises(TaskIndexError):
        session.reset(index)
    assert session.step("<answer>Lima</answer>").reward == 1.0


def test_oracle_searches_before_it_answers_if_no_hops_are_known(corpus: Path) -> None:
    session = begin(corpus)
    actions = [session.oracle_action()]
    session.step(actions[0])
    actions.append(session.oracle_action())
    assert actions == ["<search>what is the capital of peru</search>", "<answer>Lima</answer>"]
    assert session.step(actions[1]).reward == 1.0
    with pytest.raises(OracleError):
        session.oracle_action()


def test_an_unknown_list_is_refused_with_the_names_that_exist(corpus: Path) -> None:
    with pytest.raises(UnknownTaskListError) as unknown:
        SearchQA(Settings(data=corpus)).tasks("easy")
    assert (unknown.value.world, unknown.value.name, unknown.value.nearest) == (
        "searchqa",
        "easy",
        None,
    )


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    assert Settings.read({}) == Settings(
        cache=Path("~/.cache/agentgym-pipeline/searchqa").expanduser()
    )
    given = {
        "SEARCHQA_DATA": str(tmp_path),
        "SEARCHQA_CACHE": "/c",
        "SEARCHQA_WRONG_ANSWER": "continue",
        "SEARCHQA_FORMAT_REWARD": "0.25",
    }
    assert Settings.read(given) == Settings(tmp_path, Path("/c"), False, 0.25)
    assert Settings.read({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/agentgym-pipeline/searchqa")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SEARCHQA_WRONG_ANSWER", "no"),
        ("SEARCHQA_FORMAT_REWARD", "much"),
        ("SEARCHQA_FORMAT_REWARD", "1.5"),
        ("SEARCHQA_FORMAT_REWARD", "nan"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.read({variable: value})
    assert refused.value.variable == variable
    assert repr(value) in str(refused.value)


def test_a_folder_without_a_corpus_is_refused_with_the_build_command(tmp_path: Path) -> None:
    with pytest.raises(SearchDataError, match=r"environments\.searchqa\.build --help"):
        SearchQA(Settings(data=tmp_path))
