"""The actions in words: which there are in a view, what they come down to, and why another cannot be done.

Names, order and messages are AgentGym's. A path leads through what is in view, with unseen places taken for free, and may therefore
end early.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.rules import Rules
from environments.babyai.view import FRONT, HALF, HERE, ROW, SIZE, Thing, View, place

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""minigrid's own actions."""

CHECK = "check available actions"
UNKNOWN = "The action is not recognized. Please check valid actions."


@dataclass(frozen=True, slots=True)
class Route:
    """Walk to where `goal` is right in front, or onto it with `arrive`; then do minigrid's actions `then`."""

    goal: int
    arrive: bool = False
    then: tuple[int, ...] = ()


Action = tuple[int, ...] | Route
"""minigrid's actions in order, or a route to be found."""

_FRAME = sum(place(ahead, side) for ahead in range(SIZE) for side in range(-HALF, HALF + 1))
_BEHIND = sum(place(-1, side) for side in range(-HALF, HALF + 2))
_RIGHTMOST = sum(place(ahead, HALF + 1) for ahead in range(-1, SIZE))
# AgentGym's paths may leave the view by one row or one column, depending on the compass: right, down, left, up.
_PASSABLE = (
    (_FRAME | _BEHIND) & ~_RIGHTMOST,
    _FRAME | _BEHIND | _RIGHTMOST,
    (_FRAME | _RIGHTMOST) & ~_BEHIND,
    _FRAME,
)


def free_places(view: View, direction: int) -> int:
    """Where a path may lead: not through walls, keys, balls and boxes in sight, but through doors, open or not."""
    blocked = view.walls
    for thing in view.things:
        if thing.kind != "door":
            blocked |= thing.at
    return _PASSABLE[direction] & ~blocked


def available_actions(view: View, direction: int, rules: Rules = "ours") -> dict[str, Action]:
    """Every action that can be tried now, by its words, in the order in which they are told.

    Under AgentGym's rules "toggle" opens a door and does nothing else: none closes, and no box opens.
    """
    free = free_places(view, direction)
    reached, grown = 0, HERE
    while grown != reached:
        reached = grown
        grown = (reached | reached << 1 | reached >> 1 | reached << ROW | reached >> ROW) & free | HERE
    beside = reached << 1 | reached >> 1 | reached << ROW | reached >> ROW

    actions: dict[str, Action] = {"turn left": (LEFT,), "turn right": (RIGHT,)}
    barrier = view.barrier
    if barrier is None or barrier[1] > 1:
        actions["move forward"] = (FORWARD,)
    if view.carrying is None:
        for thing in view.things:
            if thing.kind != "door" and thing.at & beside:
                actions[f"pickup {thing.label}"] = Route(thing.at, then=(PICKUP,))
    elif not _is_blocked(view):
        actions["drop"] = (DROP,)
    for thing in view.things:
        if thing.kind == "door":
            if " open " in thing.name:
                if thing.at & reached:
                    actions[f"go through {thing.label}"] = Route(thing.at, arrive=True)
            elif _why_locked(view, thing) is not None:
                continue
            elif thing.at & beside:
                actions[f"toggle and go through {thing.label}"] = Route(thing.at, then=(TOGGLE, FORWARD))
            if thing.at == FRONT and (rules == "ours" or " open " not in thing.name):
                actions["toggle"] = (TOGGLE,)
        elif thing.kind == "box" and thing.at == FRONT and rules == "ours":
            actions["toggle"] = (TOGGLE,)
    for thing in view.things:
        if thing.at & beside:
            actions[f"go to {thing.label}"] = Route(thing.at)
    actions[CHECK] = ()
    return actions


def explain_refusal(action: str, view: View) -> str:
    """Why `action`, which is not among the available ones, cannot be done."""
    if not action:
        return "No change in state."
    if action == "move forward":
        return "There is a barrier in front of you, you can't move forward."
    if action == "drop":
        if view.carrying is None:
            return "You cannot drop the object, as you are not carrying anything."
        return "You cannot drop the object, as there is already an object in front of you."
    for thing in view.things:
        for verb in ("pickup", "toggle and go through", "go through", "go to"):
            if action == f"{verb} {thing.label}":
                why = _why_not(verb, thing, view)
                return UNKNOWN if why is None else f"You cannot {action}, as {why}"
    return UNKNOWN


def _is_blocked(view: View) -> bool:
    """Whether something lies right in front, so that nothing can be dropped there."""
    return bool(view.walls & FRONT) or any(thing.at == FRONT and thing.kind != "door" for thing in view.things)


def _why_locked(view: View, door: Thing) -> str | None:
    """Why a locked door cannot be opened; None for other doors and with the key in hand."""
    colour, state, _ = door.name.split(" ")
    if state != "locked":
        return None
    if view.carrying is None or not view.carrying.endswith(" key"):
        return "you are not carrying a key."
    if view.carrying != f"{colour} key":
        return "the color of the key you are carrying does not match the color of door."
    return None


def _why_not(verb: str, thing: Thing, view: View) -> str | None:
    no_path = "there is no path leading to it."
    if verb == "go to":
        return no_path
    if verb == "pickup":
        return no_path if thing.kind != "door" and view.carrying is None else None
    if thing.kind != "door":
        return None
    if verb == "go through":
        return no_path if " open " in thing.name else "it is closed. You should toggle it first." if " closed " in thing.name else None
    return None if " open " in thing.name else _why_locked(view, thing) or no_path
