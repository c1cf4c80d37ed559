"""Text actions: which are available in a view, what they do, and why others fail.

Names, order and messages are AgentGym's. Paths lead through the view and treat unseen places as
free, so a path may end early.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.rules import Rules
from environments.babyai.view import FRONT, HALF, HERE, ROW, SIZE, Thing, View, place

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""minigrid's primitive actions."""

CHECK = "check available actions"
UNKNOWN = "The action is not recognized. Please check valid actions."


@dataclass(frozen=True, slots=True)
class Route:
    """Walk to `goal` or onto it, then perform further actions.

    Attributes:
        goal: Target place, as a set with one bit (see view.py).
        arrive: Whether to walk onto the goal. Otherwise the walk ends directly in front of it.
        then: minigrid's actions to perform after the walk.
    """

    goal: int
    arrive: bool = False
    then: tuple[int, ...] = ()


Action = tuple[int, ...] | Route
"""minigrid's actions in order, or a route whose path is still to be found."""

_FRAME = sum(place(ahead, side) for ahead in range(SIZE) for side in range(-HALF, HALF + 1))
_BEHIND = sum(place(-1, side) for side in range(-HALF, HALF + 2))
_RIGHTMOST = sum(place(ahead, HALF + 1) for ahead in range(-1, SIZE))
# AgentGym's paths may leave the view by one row or column. The masks are for the four directions
# right, down, left and up.
_PASSABLE = (
    (_FRAME | _BEHIND) & ~_RIGHTMOST,
    _FRAME | _BEHIND | _RIGHTMOST,
    (_FRAME | _RIGHTMOST) & ~_BEHIND,
    _FRAME,
)


def free_places(view: View, direction: int) -> int:
    """Return the places that a path may cross.

    Walls, keys, balls and boxes in view block a path. Doors do not, whether open or closed.
    """
    blocked = view.walls
    for thing in view.things:
        if thing.kind != "door":
            blocked |= thing.at
    return _PASSABLE[direction] & ~blocked


def available_actions(view: View, direction: int, rules: Rules = "ours") -> dict[str, Action]:
    """Return all available actions by name, in the order in which the observation lists them.

    Under AgentGym's rules "toggle" only opens doors. It neither closes doors nor opens boxes.
    """
    free = free_places(view, direction)
    reached, grown = 0, HERE
    while grown != reached:
        reached = grown
        grown = (
            reached | reached << 1 | reached >> 1 | reached << ROW | reached >> ROW
        ) & free | HERE
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
                actions[f"toggle and go through {thing.label}"] = Route(
                    thing.at, then=(TOGGLE, FORWARD)
                )
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
    """Return the message for an unavailable action."""
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
    """Return whether something directly in front prevents dropping."""
    return bool(view.walls & FRONT) or any(
        thing.at == FRONT and thing.kind != "door" for thing in view.things
    )


def _why_locked(view: View, door: Thing) -> str | None:
    """Return why a locked door cannot be opened.

    Returns None for other doors, and if the agent carries the matching key.
    """
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
        if " open " in thing.name:
            return no_path
        if " closed " in thing.name:
            return "it is closed. You should toggle it first."
        return None
    return None if " open " in thing.name else _why_locked(view, thing) or no_path
