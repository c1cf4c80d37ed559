"""Draw SciWorld: the rooms seen so far, the doors between them, their objects and the inventory.

Everything is parsed from the observations, so only what the agent has looked at is drawn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markupsafe import Markup

from dashboards.trajectory import TrajectoryView

PLACE = re.compile(
    r"This (?:room|outside location) is called the (.+?)\. (?:In it, you|Here you) "
    r"see:\s*(.*?)(?:You also see:\s*(.*))?$",
    re.DOTALL,
)
DOOR = re.compile(r"A door to the (.+?) \((?:that is )?(open|closed)\)")
MOVED = re.compile(r"You move to the (.+?)\.")
TAKEN = re.compile(r"You move the (.+?) to the inventory\.")
OPENED = re.compile(r"The door is now (open|closed)\.")
DOOR_ACTION = re.compile(r"(?:open|close) door to (?:the )?(.+)")
PUT = re.compile(r"You move the (.+?) to the (?!inventory)(.+?)\.")
TASK = re.compile(r"Your task is to (.*?)(?:\n|$)")


@dataclass(slots=True)
class House:
    """The state of the house as observed so far.

    Attributes:
        here: Current place of the agent. Empty if unknown.
        things: Place to the objects last seen there.
        doors: Pair of places to whether the door between them is open.
        carried: Inventory, in order of pick-up.
        task: Task description from the environment.
    """

    here: str = ""
    things: dict[str, list[str]] = field(default_factory=dict)
    doors: dict[frozenset[str], bool] = field(default_factory=dict)
    carried: list[str] = field(default_factory=list)
    task: str = ""

    def update(self, action: str, observation: str) -> None:
        """Update the state with an action and its observation."""
        if moved := MOVED.search(observation):
            self.here = moved[1]
            self.things.setdefault(self.here, [])
        if found := PLACE.search(observation):
            self.here = found[1]
            lines = (line.strip() for line in found[2].splitlines())
            self.things[self.here] = [line for line in lines if line and line != "the agent"]
            for other, state in DOOR.findall(found[3] or ""):
                self.doors[frozenset((self.here, other))] = state == "open"
                self.things.setdefault(other, [])
        if (turned := OPENED.search(observation)) and (door := DOOR_ACTION.search(action)):
            self.doors[frozenset((self.here, door[1].strip()))] = turned[1] == "open"
        if taken := TAKEN.search(observation):
            self.carried.append(taken[1])
        elif (put := PUT.search(observation)) and put[1] in self.carried:
            self.carried.remove(put[1])


def house_after(trajectory: TrajectoryView, turns: int) -> House:
    """Return the state after some turns."""
    house = House()
    task = TASK.search(trajectory.first_observation)
    house.task = task[1] if task else ""
    house.update("", trajectory.first_observation)
    for turn in trajectory.turns[:turns]:
        house.update(turn.action, turn.observation)
    return house


def draw(trajectory: TrajectoryView, turns: int) -> Markup:
    """Draw the places and the inventory after some turns."""
    house = house_after(trajectory, turns)
    earned = sum(turn.reward for turn in trajectory.turns[:turns])
    places = Markup("").join(_place(house, place) for place in house.things)
    carried = Markup("").join(
        Markup("<li>{}</li>").format(thing) for thing in house.carried
    ) or Markup("<li class=quiet>empty</li>")
    return Markup(
        "<p class=question>{}</p><meter min=0 max=1 value={} aria-label='score so far'></meter> "
        "score {}"
        "<h3>Inventory</h3><ul class=inventory>{}</ul><h3>Places</h3><div class=places>{}</div>"
    ).format(house.task, f"{earned:.3f}", f"{earned:.2f}", carried, places)


def _place(house: House, place: str) -> Markup:
    things = Markup("").join(Markup("<li>{}</li>").format(thing) for thing in house.things[place])
    doors = Markup(", ").join(
        Markup('<span class="{}">{}</span>').format(
            "there" if is_open else "quiet",
            f"{next(iter(pair - {place}), place)} {'open' if is_open else 'closed'}",
        )
        for pair, is_open in house.doors.items()
        if place in pair
    )
    return Markup(
        '<details class="place {}" {}><summary>{}{}</summary><ul>{}</ul><p class=quiet>Doors: '
        "{}</p></details>"
    ).format(
        "here" if place == house.here else "",
        Markup("open") if place == house.here else "",
        place,
        " (agent)" if place == house.here else "",
        things or Markup("<li class=quiet>not seen yet</li>"),
        doors or "none seen yet",
    )
