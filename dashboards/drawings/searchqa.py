"""Draw SearchQA: the question, each query with its passages, and the answer.

The words of the answer are marked in the passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from dashboards.trajectory import TrajectoryView

SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
PASSAGE = re.compile(
    r"Doc (\d+)\(Title: (.*?)\)(?!\)) ?(.*?)(?=\nDoc \d+\(Title: |</information>|\Z)", re.DOTALL
)
SMALL = {"a", "an", "and", "in", "is", "of", "on", "or", "the", "to"}


def draw(trajectory: TrajectoryView, turns: int) -> Markup:
    """Draw queries, passages and answers of the first turns.

    The words of the episode's last answer are marked.
    """
    answers = [
        found[1].strip()
        for turn in trajectory.turns
        if (found := ANSWER.search(turn.action or turn.message))
    ]
    words = _marked(answers[-1]) if answers else None
    parts = [Markup("<p class=question>{}</p>").format(trajectory.first_observation)]
    for turn in trajectory.turns[:turns]:
        said = turn.action or turn.message
        if query := SEARCH.search(said):
            parts.append(Markup("<h3>⌕ {}</h3>").format(query[1].strip()))
            parts += list(_passages(turn.observation, words)) or [
                Markup("<p class=quiet>No passages found.</p>")
            ]
        elif answer := ANSWER.search(said):
            right = "there" if turn.reward > 0 else "missing"
            parts.append(
                Markup('<p class="answer {}">Answer: <b>{}</b> — {}</p>').format(
                    right, answer[1].strip(), turn.observation
                )
            )
    return Markup("").join(parts)


def _passages(observation: str, words: re.Pattern[str] | None) -> Iterator[Markup]:
    for _, title, text in PASSAGE.findall(observation):
        yield Markup("<details open class=passage><summary>{}</summary><p>{}</p></details>").format(
            _with_marks(title, words), _with_marks(text, words)
        )


def _marked(answer: str) -> re.Pattern[str] | None:
    """Return a pattern for the whole answer or any of its words except stop words.

    None if the answer has only stop words.
    """
    words = sorted(
        {word for word in re.findall(r"\w+", answer) if word.lower() not in SMALL},
        key=len,
        reverse=True,
    )
    if words:
        return re.compile(
            "|".join([re.escape(answer), *(rf"\b{re.escape(word)}\b" for word in words)]),
            re.IGNORECASE,
        )
    return None


def _with_marks(text: str, words: re.Pattern[str] | None) -> Markup:
    if words is None:
        return escape(text)
    parts, end = [], 0
    for match in words.finditer(text):
        parts += [escape(text[end : match.start()]), Markup("<mark>{}</mark>").format(match[0])]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
