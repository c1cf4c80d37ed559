"""Parse the text of an action, independently of the open page.

The syntax is WebArena's. The action may stand in triple backticks with any text around them, as
AgentGym's prompts request. Only the bracket after the verb counts. Text behind it is ignored, as in
WebArena, because agents repeat an observation's words ("click [2] where [2] is link 'Cart'") or end
with a full stop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from environments.environment import InvalidActionError

MAX_CHARACTERS = 20_000
MAX_TYPED = 5_000
MAX_NUMBER = 6
"""Maximum digits of an element's number."""
FORMS = (
    "The actions are: click [id], type [id] [text] [press_enter_after=0|1], hover [id], press "
    "[key_comb], scroll [down|up], new_tab, "
    "tab_focus [n], close_tab, goto [url], go_back, go_forward, stop [answer]."
)

_MODIFIERS = {
    "ctrl": "Control",
    "control": "Control",
    "shift": "Shift",
    "alt": "Alt",
    "meta": "Meta",
    "cmd": "Meta",
    "command": "Meta",
}
_KEYS = {
    key.lower(): key
    for key in (
        "Enter", "Tab", "Escape", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp",
        "PageDown", "Space",
    )
}  # fmt: skip
_KEYS |= {"return": "Enter", "esc": "Escape", "del": "Delete"}
_ENTER_AFTER = r"\[\s*(?:press_enter_after=)?\s*([01])\s*\]"
_KEYS |= {"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"}


@dataclass(frozen=True, slots=True)
class Click:
    """Click on an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Type:
    """Replace a field's text, and press Enter afterwards if `enter` is set."""

    element: int
    text: str
    enter: bool


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the mouse over an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Press:
    """Press a key with modifiers, e.g. ("Control",), "a"."""

    modifiers: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """Scroll the page by one window height."""

    direction: Literal["down", "up"]


NavigationVerb = Literal["new_tab", "close_tab", "go_back", "go_forward"]


@dataclass(frozen=True, slots=True)
class Navigate:
    """Open an empty tab, close the current one, or go back or forward in its history."""

    verb: NavigationVerb


@dataclass(frozen=True, slots=True)
class TabFocus:
    """Bring the tab of that number to the front."""

    tab: int


@dataclass(frozen=True, slots=True)
class Goto:
    """Open an address."""

    url: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode with an answer, which may be empty."""

    answer: str


_NAVIGATIONS = {verb: Navigate(verb) for verb in get_args(NavigationVerb)}
Action = Click | Type | Hover | Press | Scroll | Navigate | TabFocus | Goto | Stop


def parse_action(reply: str) -> Action:
    """Parse an agent's reply into an action.

    Raises:
        InvalidActionError: The reply is not an action of this world. The message addresses the
            agent.
    """
    if len(reply) > MAX_CHARACTERS:
        raise InvalidActionError(
            f"The reply has {len(reply)} characters; at most {MAX_CHARACTERS} are read. {FORMS}"
        )
    # A lone surrogate can neither be typed nor encoded as UTF-8.
    reply = reply.encode("utf-8", "replace").decode()
    fenced = re.search(r"```(.*?)```", reply, re.DOTALL)
    text = (fenced.group(1) if fenced else reply).strip()
    if not text:
        raise InvalidActionError(f"There is no action. {FORMS}")
    verb, rest = _split(text)
    if verb in _NAVIGATIONS:
        return _NAVIGATIONS[verb]
    if verb == "stop":
        return Stop(_parse_answer(rest))
    if verb == "type":
        return _parse_type(rest)
    if verb in ("click", "hover"):
        element, _ = _number(rest, verb)
        return Click(element) if verb == "click" else Hover(element)
    if verb == "scroll":
        direction = re.match(r"\[?\s*(?:direction=)?(down|up)", rest, re.IGNORECASE)
        if direction is None:
            raise InvalidActionError("Scroll which way? 'scroll [down]' or 'scroll [up]'.")
        return Scroll("down" if direction[1].lower() == "down" else "up")
    if verb == "press":
        # The last key may be a bracket.
        keys = re.match(r"\[(.+?)\](?!\])", rest, re.DOTALL)
        return _parse_press(keys[1].strip() if keys else rest.strip("[]"))
    if verb == "tab_focus":
        return TabFocus(_number(rest, verb)[0])
    if verb == "goto":
        return Goto(_bracketed(rest)[0].strip() if rest.startswith("[") else rest.partition(" ")[0])
    raise InvalidActionError(f"The action '{_shown(text)}' is not understood. {FORMS}")


def _split(text: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z_]+", text)
    verb = found.group(0) if found else ""
    return verb.lower(), text[len(verb) :].strip()


def _bracketed(rest: str) -> tuple[str, str]:
    """Return the content of the bracket that `rest` begins with, and the text after the bracket.

    The bracket ends at its matching bracket. If inner brackets are unbalanced, it ends at the last
    closing bracket.
    """
    depth, end, last = 0, -1, rest.rfind("]")
    for place, letter in enumerate(rest):
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and end < 0:
            end = place
        if depth < 0:
            end = last
            break
    if end < 0:
        end = last if last > 0 else len(rest)
    return rest[1:end], rest[end + 1 :].strip()


def _number(rest: str, verb: str) -> tuple[int, str]:
    """Return the number that `rest` begins with and the text after it. Brackets are optional."""
    found = re.match(
        rf"\[\s*([0-9]{{1,{MAX_NUMBER}}})\s*\]|([0-9]{{1,{MAX_NUMBER}}})(?![\w.\]])", rest
    )
    if found is None:
        raise InvalidActionError(f"'{verb}' needs a number in brackets, such as '{verb} [12]'.")
    return int(found[1] or found[2]), rest[found.end() :].strip()


def _parse_answer(rest: str) -> str:
    if rest.startswith("["):
        return _bracketed(rest)[0].strip()
    if "[" in rest:
        raise InvalidActionError(
            "Write the answer in brackets right after the word: 'stop [answer]'."
        )
    return rest if any(letter.isalnum() for letter in rest) else ""


def _parse_type(rest: str) -> Type:
    how = "To type, name the field and the text: 'type [12] [some text] [1]'; 0 at the end presses no Enter afterwards."
    try:
        element, rest = _number(rest, "type")
    except InvalidActionError as no_number:
        raise InvalidActionError(how) from no_number
    if not rest.startswith("[") or "]" not in rest:
        raise InvalidActionError(how)
    text, after = _bracketed(rest)
    flag = re.match(_ENTER_AFTER, after)
    if flag is None and (flag := re.search(rf"\]\s*{_ENTER_AFTER}$", f"{text}]")):
        text = text[: flag.start()]
    if len(text) > MAX_TYPED:
        raise InvalidActionError(
            f"The text has {len(text)} characters; at most {MAX_TYPED} can be typed at once."
        )
    if any(not letter.isprintable() and letter not in "\n\t" for letter in text):
        raise InvalidActionError("The text holds characters that no keyboard writes.")
    return Type(element, text, flag is None or flag[1] == "1")


def _parse_press(combination: str) -> Press:
    *before, last = (
        combination.split("+") if combination not in ("+", "") else ["+"] if combination else [""]
    )
    modifiers = tuple(_MODIFIERS.get(part.strip().lower(), "") for part in before)
    key = _KEYS.get(
        last.strip().lower(),
        last if len(last) == 1 and last.isascii() and last.isprintable() else "",
    )
    if not key or "" in modifiers or len(set(modifiers)) < len(modifiers):
        raise InvalidActionError(
            f"The keys '{_shown(combination)}' are not known: a letter, a digit, Enter, Tab, "
            "Escape, Backspace, Delete, Home, End, PageUp, PageDown or an arrow such as ArrowDown, "
            "with Control+, Shift+, Alt+ or Meta+ before it."
        )
    return Press(modifiers, key)


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:60] + "..."
