"""Draw TextCraft: the inventory and the goal's crafting tree, with crafted and missing items.

Everything is parsed from the observations. Renamed goals and trajectories of other servers
therefore work too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from dashboards.trajectory import TrajectoryView

COMMAND = re.compile(r"^craft (\d+) (.+?) using (.+)$", re.MULTILINE)
GOAL = re.compile(r"Goal: craft (.+?)\.?\s*$", re.MULTILINE)
COUNTED = re.compile(r"(\d+) (.+)")
GOT = re.compile(r"^Got (\d+) (.+?)\.?$", re.MULTILINE)
CRAFTED = re.compile(r"^Crafted (\d+) (?:minecraft:)?(.+?)\.?$", re.MULTILINE)
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Command:
    """A crafting command of the prompt: `count` of `output` from counted ingredients."""

    output: str
    count: int
    ingredients: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Crafting:
    """The state of an episode.

    Attributes:
        goal: Item to craft.
        commands: Crafting commands of the prompt.
        held: Item to its count in the inventory.
        made: Items crafted so far.
    """

    goal: str
    commands: tuple[Command, ...]
    held: dict[str, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)


def crafting(first_observation: str, turns: Iterable[tuple[str, str]]) -> Crafting:
    """Return the state of an episode after some turns.

    Args:
        first_observation: First observation, with the commands and the goal.
        turns: Action and observation of each turn.
    """
    goal = GOAL.search(first_observation)
    commands = tuple(
        Command(output.strip(), int(count), tuple(_counted(using)))
        for count, output, using in COMMAND.findall(first_observation)
    )
    state = Crafting(goal[1].strip() if goal else "", commands)
    for action, observation in turns:
        if got := GOT.search(observation):
            _add(state.held, got[2], int(got[1]))
        elif crafted := CRAFTED.search(observation):
            for item, count in _counted(action.partition(" using ")[2]):
                _add(state.held, item, -count)
            item = crafted[2].replace("_", " ")  # Minecraft's spelling
            _add(state.held, item, int(crafted[1]))
            state.made.add(item)
    return state


def draw(trajectory: TrajectoryView, turns: int) -> Markup:
    """Draw the inventory and the goal's crafting tree after some turns."""
    done = [
        (turn.action, turn.observation) for turn in trajectory.turns[:turns] if not turn.malformed
    ]
    state = crafting(trajectory.first_observation, done)
    held = Markup("").join(
        Markup("<li><b>{}</b> {}</li>").format(count, name)
        for name, count in state.held.items()
        if count > 0
    ) or Markup("<li class=quiet>empty</li>")
    return Markup(
        "<h3>Inventory</h3><ul class=inventory>{}</ul><h3>Crafting tree of the goal</h3><ul "
        "class=tree>{}</ul>"
    ).format(held, _branch(state, state.goal, 1, ()))


def _branch(
    state: Crafting, item: str, wanted: int, above: tuple[str, ...], needed: bool = True
) -> Markup:
    held = state.held.get(item, 0)
    there = held >= wanted or (item == state.goal and item in state.made)
    status = (
        "there" if there else "quiet" if not needed else "made" if item in state.made else "missing"
    )
    ways = [command for command in state.commands if command.output == item]
    below = Markup("")
    if ways and item not in above and len(above) < MAX_DEPTH:
        for number, command in enumerate(ways):
            runs = -(-max(1, wanted - held) // command.count)
            parts = Markup("").join(
                _branch(state, name, count * runs, (*above, item), needed and not there)
                for name, count in command.ingredients
            )
            below += Markup("{}<ul>{}</ul>").format(
                Markup("<span class=quiet>or</span>") if number else "", parts
            )
    word = {"there": "✓", "made": "craft more", "quiet": "no longer needed"}.get(
        status, "craft" if ways else "get"
    )
    return Markup('<li class="{}"><span>{} {} <em>{} held · {}</em></span>{}</li>').format(
        status, wanted, escape(item), held, word, below
    )


def _counted(listed: str) -> list[tuple[str, int]]:
    found = (COUNTED.fullmatch(part.strip()) for part in listed.split(","))
    return [(match[2].strip(), int(match[1])) for match in found if match]


def _add(held: dict[str, int], item: str, count: int) -> None:
    held[item] = max(0, held.get(item, 0) + count)
