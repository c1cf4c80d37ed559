"""The oracle: returns the next action of a task's plan, with the current page's element numbers.

It uses only the agent's observation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.environment import InvalidActionError, OracleError
from environments.webarena.actions import Scroll, parse_action
from environments.webarena.intents.intent import Move

_LINE = re.compile(r"^\t*\[(\d+)\] ", re.MULTILINE)
SCROLL_DOWN = "scroll [down]"


class Oracle:
    """Executes a plan over one episode.

    After an action that deviates from the plan, it restarts from the start page. A plan that has
    already changed the site may then change it twice.
    """

    def __init__(self, plan: Sequence[Move], start_url: str) -> None:
        self._plan = plan
        self._start = f"goto [{start_url}]"
        self._done = 0
        self._strayed = False
        self._scrolled_from: str | None = None

    def action(self, observation: str) -> str:
        """Return the next action.

        Raises:
            OracleError: The element that the plan needs is not on the page.
        """
        if self._strayed:
            return self._start
        move = self._plan[self._done]
        if move.verb == "stop":
            return f"stop [{move.text}]"
        number = _find(observation, move.role, move.name)
        if number is None:
            if self._scrolled_from == _tree(observation):
                raise OracleError(f"there is no {move.role} {move.name!r} on the page")
            return SCROLL_DOWN
        if move.verb == "click":
            return f"click [{number}]"
        return f"type [{number}] [{move.text}] [{int(move.enter)}]"

    def performed(self, action: str, observation: str) -> None:
        """Record an action and the observation before it."""
        try:
            meant = parse_action(action)
        except InvalidActionError:
            return
        try:
            expected = parse_action(self.action(observation))
        except OracleError:
            expected = None
        self._scrolled_from = None
        if meant != expected:
            self._strayed = self._strayed or not isinstance(meant, Scroll)
        elif self._strayed:
            self._strayed, self._done = False, 0
        elif isinstance(meant, Scroll):
            self._scrolled_from = _tree(observation)
        else:
            self._done = min(self._done + 1, len(self._plan) - 1)


def _find(observation: str, role: str, name: str) -> int | None:
    for found in _LINE.finditer(observation):
        rest = observation[found.end() :]
        line = rest[: rest.find("\n")] if "\n" in rest else rest
        shown = f"{role} {name!r}"
        if line == shown or line.startswith(shown + " "):
            return int(found.group(1))
    return None


def _tree(observation: str) -> str:
    return "\n".join(line for line in observation.splitlines() if _LINE.match(line))
