"""Parse an agent's reply into a search or an answer."""

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
        kind: "search" or "answer".
        text: The query or the answer on one line, 1 to `MAX_CHARACTERS` characters long.
        well_formed: Whether nothing but white space follows the action in the reply.
    """

    kind: Kind
    text: str
    well_formed: bool


class AnswerFormError(InvalidActionError):
    """A malformed answer. The message is returned to the agent as the observation."""


def parse_action(reply: str, *, last_answer: bool = False) -> Action:
    """Return the first complete `<search>` or `<answer>` of a reply. Text around it is ignored.

    Args:
        reply: The agent's message.
        last_answer: If the first action is an answer, return the reply's last complete answer
            instead.

    Raises:
        AnswerFormError: The answer is empty or too long, or there is no complete action and nothing
            that looks like a search.
        InvalidActionError: The search is incomplete, empty or too long. The message is the
            observation.
    """
    # No regular expression: it takes quadratic time on a reply that opens a tag many times.
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
        raise wrong_form(
            f"The {kind} has {len(inner)} characters; at most {MAX_CHARACTERS} are read. Make it "
            "shorter."
        )
    text = " ".join(inner.encode("utf-8", "replace").decode().split())
    return Action(kind, text, not reply[stop + len(f"</{kind}>") :].strip())


def _looks_like_search(reply: str) -> bool:
    """Whether an incomplete reply has a search tag, in any case, but no answer tag."""
    tags = reply.lower()
    return "search>" in tags and "answer>" not in tags


def _last_answer(reply: str) -> tuple[int, int, Kind]:
    """Return start, end and kind of the last answer.

    Answers are read left to right, each from its opening tag to the next closing tag.
    """
    opening, closing, start, stop = "<answer>", "</answer>", -1, 0
    while (at := reply.find(opening, stop)) >= 0 and (end := reply.find(closing, at)) >= 0:
        start, stop = at, end
    return start, stop, "answer"
