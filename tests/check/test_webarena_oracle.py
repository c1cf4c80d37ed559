"""Tests of WebArena's oracle, which carries out a plan from the observations alone."""

from __future__ import annotations

import pytest

from environments.environment import OracleError
from environments.webarena.intents.intent import parse_move
from environments.webarena.oracle import Oracle

HOME = "OBSERVATION:\nTab 0 (current): x\n\n[1] RootWebArea 'x'\n\t[2] textbox 'Search' focused: True\n\t[3] link \"It's\"\nURL: http://a"
FAR = HOME.replace("[3] link", "[4] link")
PLAN = tuple(map(parse_move, ("enter Search = a [b]", "link It's", "stop done")))


def follow(oracle: Oracle, observation: str) -> str:
    action = oracle.action(observation)
    assert oracle.action(observation) == action  # asking changes nothing
    oracle.performed(action, observation)
    return action


def test_the_oracle_uses_the_numbers_of_the_current_page() -> None:
    oracle = Oracle(PLAN, "http://a")
    assert follow(oracle, HOME) == "type [2] [a [b]] [1]"
    assert follow(oracle, FAR) == "click [4]"
    assert follow(oracle, HOME) == "stop [done]"


def test_oracle_scrolls_to_hidden_elements_and_gives_up_at_the_end_of_the_page() -> None:
    oracle = Oracle((parse_move("button Send"), parse_move("stop")), "http://a")
    assert follow(oracle, HOME) == "scroll [down]"
    assert oracle.action("[9] button 'Send'") == "click [9]"
    with pytest.raises(OracleError, match="Send"):
        oracle.action(HOME + " ")


def test_names_must_match_completely() -> None:
    oracle = Oracle((parse_move("link Cart"), parse_move("stop")), "http://a")
    assert (
        oracle.action("[1] link 'Cart 2'\n[2] heading 'Cart'\n\t[3] link 'Cart' focused: True")
        == "click [3]"
    )


def test_oracle_restarts_from_the_start_page_after_another_action() -> None:
    oracle = Oracle(PLAN, "http://a")
    follow(oracle, HOME)
    oracle.performed("scroll [up]", HOME)
    assert oracle.action(HOME) == "click [3]"
    oracle.performed("go_back", HOME)
    assert follow(oracle, HOME) == "goto [http://a]"
    assert oracle.action(HOME) == "type [2] [a [b]] [1]"
