"""From what an agent writes to what it means: a search, an answer, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from environments.environment import InvalidActionError

MAX_CHARACTERS = 500
FORMS = "The actions are: <search>query</search> to look something up and <answer>text</answer> to answer the question."

Kind = Literal["search", "answer"]
KINDS: tuple[Kind, ...] = ("search", "answer")


@dataclass(frozen=True, slots=True)
class Action:
    """One search or one answer.

    Attributes:
        kind: Which of the two.
        text: The query or the answer, on one line.
        well_formed: Whether the reply ends with it.
    """

    kind: Kind
    text: str
    well_formed: bool


class AnswerFormError(InvalidActionError):
    """An answer in a wrong form; the message is the observation."""


def parse_action(reply: str, *, last_answer: bool = False) -> Action:
    """The first complete `<search>` or `<answer>` of a reply; whatever stands around it is ignored.

    With `last_answer` an answer that comes first gives way to the last complete one of the reply.

    Raises:
        AnswerFormError: There is none and nothing looks like a search, or the answer is empty or too long.
        InvalidActionError: The search is incomplete, empty or too long; the message is the observation.
    """
    # Plain searches, because a regular expression takes quadratic time where a tag is opened again and again.
    found: tuple[int, int, Kind] | None = None
    for kind in KINDS:
        start = reply.find(f"<{kind}>")
        stop = reply.find(f"</{kind}>", start) if start >= 0 else -1
        if stop >= 0 and (found is None or start < found[0]):
            found = start, stop, kind
    if found is None:
        wrong_form = InvalidActionError if _looks_like_search(reply) else AnswerFormError
        raise wrong_form(f"The message holds no complete action. {FORMS}")
    start, stop, kind = _last_answer(reply) if last_answer and found[2] == "answer" else found
    wrong_form = InvalidActionError if kind == "search" else AnswerFormError
    inner = reply[start + len(f"<{kind}>") : stop].strip()
    if not inner:
        raise wrong_form(f"The {kind} is empty. {FORMS}")
    if len(inner) > MAX_CHARACTERS:
        raise wrong_form(f"The {kind} has {len(inner)} characters; at most {MAX_CHARACTERS} are read. Make it shorter.")
    text = " ".join(inner.encode("utf-8", "replace").decode().split())
    return Action(kind, text, not reply[stop + len(f"</{kind}>") :].strip())


def _looks_like_search(reply: str) -> bool:
    """Whether a reply without a complete action has a search tag, in any case, and no answer tag."""
    tags = reply.lower()
    return "search>" in tags and "answer>" not in tags


def _last_answer(reply: str) -> tuple[int, int, Kind]:
    """The last answer when all are read from left to right, each from its opening to the next closing."""
    opening, closing, start, stop = "<answer>", "</answer>", -1, 0
    while (at := reply.find(opening, stop)) >= 0 and (end := reply.find(closing, at)) >= 0:
        start, stop = at, end
    return start, stop, "answer"
