"""What a policy does in its episodes, besides success: repeated turns, and where answers come from."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from tasks.rollout.trajectory import Trajectory

_PASSAGE = re.compile(r"Doc (\d+)\(Title: .*?\) ([^\n<]*)")
"""A line of passages: its place and text. A title may contain ")", e.g. "Mercury (planet)"."""
_ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>")
NOWHERE, EARLIER = "no passage", "an earlier search"


def repeated_share(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of turns whose action the episode had before. nan without turns.

    A malformed turn has no action and repeats none.
    """
    repeated = []
    for trajectory in trajectories:
        actions = [None if turn.malformed else turn.action for turn in trajectory.turns]
        repeated += [
            action is not None and action in actions[:turn] for turn, action in enumerate(actions)
        ]
    return fmean(repeated) if repeated else math.nan


def answer_sources(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the shares of answers by the passage that holds them.

    The keys are "passage 1", "passage 2", ... of the last search, "an earlier search" and "no
    passage". An answer in several passages counts for the first of them. The result is empty if no
    episode ends with an answer in the form of SearchQA.
    """
    sources = Counter(
        source for trajectory in trajectories if (source := _answer_source(trajectory))
    )
    return {source: count / sources.total() for source, count in sorted(sources.items())}


def _answer_source(trajectory: Trajectory) -> str:
    answers = _ANSWER.findall(trajectory.turns[-1].action or "") if trajectory.turns else []
    if not answers or not answers[0]:  # every passage holds an empty answer
        return ""
    *earlier, last = [""] + [
        found for turn in trajectory.turns[:-1] if "Doc 1(" in (found := turn.observation)
    ]
    held_by = [place for place, text in _PASSAGE.findall(last) if answers[0] in text]
    if held_by:
        return f"passage {held_by[0]}"
    if any(answers[0] in text for found in earlier for _, text in _PASSAGE.findall(found)):
        return EARLIER
    return NOWHERE
