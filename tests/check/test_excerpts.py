"""Tests of excerpts of demonstrations."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tasks.starter.demonstrations import Demonstration, Exchange
from tasks.starter.excerpts import KEPT, excerpt

PAGE = "\n".join(f"line {number}" for number in range(200))
SHOWN = Demonstration(
    3,
    PAGE,
    (Exchange("click [away]", PAGE, True, "seven"), Exchange("stop [here]", "You stopped.", False)),
)


@given(st.text(alphabet="ab\n"), st.floats(0, 1), st.integers())
def test_excerpt_keeps_the_last_lines_and_the_line_order(
    page: str, share: float, seed: int
) -> None:
    lines, kept = (
        page.split("\n"),
        excerpt(Demonstration(0, page, ()), share, Random(seed)).first_observation.split("\n"),
    )
    assert kept[-KEPT:] == lines[-KEPT:]
    rest = iter(lines)
    assert all(line in rest for line in kept)


def test_excerpt_keeps_the_share_of_lines_and_all_actions() -> None:
    shown = [excerpt(SHOWN, 0.1, Random(seed)) for seed in range(50)]
    lines = [
        page.count("\n") + 1
        for each in shown
        for page in (each.first_observation, each.exchanges[0].observation)
    ]
    assert 18 < sum(lines) / len(lines) - KEPT < 22
    for each in shown:
        assert each.task == SHOWN.task
        assert [(x.action, x.by_oracle, x.thought) for x in each.exchanges] == [
            (x.action, x.by_oracle, x.thought) for x in SHOWN.exchanges
        ]
        assert each.exchanges[1].observation == "You stopped."


def test_excerpt_keeps_the_line_of_the_next_action() -> None:
    page = "\n".join(
        ["[18] link 'Thistle Rug'", "[19] row '$18.00 | 18 in stock'", "[2] button 'Go'", *"abc"]
    )
    for action, kept in [
        ("click [18]", ["[18] link 'Thistle Rug'", "[19] row '$18.00 | 18 in stock'"]),
        ("type [2] [Thistle Rug] [1]", ["[18] link 'Thistle Rug'"]),
        ("stop [$18.00]", ["[19] row '$18.00 | 18 in stock'"]),
        ("stop []", []),
        ("wait", []),
    ]:
        shown = Demonstration(0, page, (Exchange(action, "", True),))
        assert excerpt(shown, 0.0, Random(0)).first_observation.split("\n") == [*kept, *"abc"]


def test_excerpt_share_one_keeps_all_lines_and_zero_only_the_last() -> None:
    assert excerpt(SHOWN, 1.0, Random(0)) == SHOWN
    assert excerpt(SHOWN, 0.0, Random(0)).first_observation == "line 197\nline 198\nline 199"
