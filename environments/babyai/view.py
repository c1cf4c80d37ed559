"""The agent's view: minigrid's 7 x 7 field, read from the grid and described in AgentGym's words.

A place is given by `ahead` (0 to 6) and `side` (-3 to 3, right is positive). Sets of places are
integers with one bit per place, in rows of nine. A row has the 7 columns of the view, one column to
their right, and one column that is always empty. One more row lies behind the agent. Shifting a set
by 1 or 9 therefore moves it by one place without wrapping between rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

SIZE = 7
HALF = SIZE // 2
ROW = 9
"""Number of bits to shift a set of places one step ahead."""


def place(ahead: int, side: int) -> int:
    """Return the set that contains only this place."""
    return 1 << ((ahead + 1) * ROW + side + HALF)


HERE = place(0, 0)
FRONT = place(1, 0)

# Order of the description: from near to far, then the farther row first, then from left to right.
_PLACES = sorted(
    ((ahead, side) for ahead in range(SIZE) for side in range(-HALF, HALF + 1)),
    key=lambda at: (at[0] + abs(at[1]), -at[0], at[1]),
)
_BITS = tuple(place(*at) for at in _PLACES)
_ROWS = tuple(range(ROW, (SIZE + 1) * ROW, ROW))
_ROW_BITS = (1 << SIZE) - 1
_SHARED = tuple(range(32 * 32))
"""Indices into a grid's list. Each index is a single int object that all readers share."""
_STRAIGHT_AHEAD = sum(place(ahead, 0) for ahead in range(1, SIZE))


def _position(ahead: int, side: int) -> str:
    if side == 0:
        return f"right in front of you {ahead} steps away. "
    return f"{ahead} steps in front of you and {abs(side)} steps to your {'right' if side > 0 else 'left'}. "


_POSITIONS = {place(*at): _position(*at) for at in _PLACES}


class Thing(NamedTuple):
    """A door, key, ball or box in view.

    Attributes:
        kind: "door", "key", "ball" or "box".
        name: Colour and kind, for doors with the state in between, e.g. "red closed door".
        label: Name and a number that distinguishes objects of equal name, 1 for the nearest.
    """

    at: int
    kind: str
    name: str
    label: str


class View(NamedTuple):
    """What the agent sees from one pose. Views are equal if the agent cannot distinguish them.

    Attributes:
        seen: Places in sight.
        walls: Places in sight that are walls.
        things: Other objects in sight, from near to far, without the carried object.
        carrying: Name of the carried object, e.g. "red key". None if there is none.
    """

    seen: int
    walls: int
    things: tuple[Thing, ...]
    carrying: str | None

    @property
    def barrier(self) -> tuple[str, int] | None:
        """The nearest wall or box straight ahead, and the number of steps to it."""
        boxes = sum(thing.at for thing in self.things if thing.kind == "box")
        ahead = (self.walls | boxes) & _STRAIGHT_AHEAD
        if not ahead:
            return None
        nearest = ahead & -ahead
        return "wall" if nearest & self.walls else "box", (nearest.bit_length() - 1) // ROW - 1

    def describe(self) -> str:
        """Return the view in words."""
        if self.things or self.walls:
            parts = ["In front of you in this room, you can see several objects: "]
            parts += [f"There is a {thing.label} {_POSITIONS[thing.at]} " for thing in self.things]
        else:
            parts = ["You cannot see any objects within sight."]
        parts.append("The room has walls around you. ")
        barrier = self.barrier
        if barrier is not None:
            parts.append(f"You are facing a {barrier[0]} {barrier[1]} steps away. ")
        parts.append(
            "You are not carrying anything."
            if self.carrying is None
            else f"You are carrying a {self.carrying}."
        )
        return "".join(parts)


def look(level: RoomGridLevel) -> View:
    """Return the current view of the agent of `level`."""
    grid = level.grid
    x, y = level.agent_pos
    clear = walls = 0
    others: list[tuple[WorldObj, int]] = []
    for cell, bit in zip(
        _reader(grid.width, grid.height, int(x), int(y), int(level.agent_dir))(grid.grid),
        _BITS,
        strict=True,
    ):
        if cell is None:
            clear |= bit
        elif cell.type == "wall":
            walls |= bit
        else:
            others.append((cell, bit))
            if cell.see_behind():
                clear |= bit

    seen, row = 0, 1 << HALF
    for shift in _ROWS:
        row, beyond = _sweep(row, clear >> shift & _ROW_BITS)
        seen |= row << shift
        row = beyond
        if not row:
            break

    things: list[Thing] = []
    counts: dict[str, int] = {}
    for cell, bit in others:
        if bit & seen and bit != HERE:
            name = name_of(cell)
            counts[name] = count = counts.get(name, 0) + 1
            things.append(Thing(bit, cell.type, name, f"{name} {count}"))
    carried = level.carrying
    return View(seen, walls & seen, tuple(things), None if carried is None else name_of(carried))


def name_of(thing: WorldObj) -> str:
    """Return colour and kind, for doors with the state in between."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{thing.color} {state} door"


@cache
def _reader(
    width: int, height: int, x: int, y: int, direction: int
) -> Callable[[list[WorldObj | None]], tuple[Any, ...]]:
    """Return a function that picks the view's cells from a grid's list, in the order of `_BITS`.

    Cells outside the grid are read from its corner, which is a wall.
    """
    ahead_x, ahead_y = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    cells = []
    for ahead, side in _PLACES:
        i, j = x + ahead * ahead_x - side * ahead_y, y + ahead * ahead_y + side * ahead_x
        cells.append(_SHARED[j * width + i] if 0 <= i < width and 0 <= j < height else 0)
    return itemgetter(*cells)


@cache
def _sweep(lit: int, clear: int) -> tuple[int, int]:
    """Spread visibility along a row, as in minigrid's `process_vis`.

    Args:
        lit: Places of the row that the previous row has revealed, as a bit set.
        clear: Transparent places, as a bit set.

    Returns:
        Visible places of the row, and places of the next row that they reveal.
    """
    beyond = 0
    for bit in (1 << column for column in range(SIZE - 1)):
        if lit & clear & bit:
            lit |= bit << 1
            beyond |= bit | bit << 1
    for bit in (1 << column for column in range(SIZE - 1, 0, -1)):
        if lit & clear & bit:
            lit |= bit >> 1
            beyond |= bit | bit >> 1
    return lit, beyond
