"""SciWorld drawn: the places seen so far and the doors between them, what was last seen in each, and what is carried.

It is read from the observations alone: what the agent has not looked at is not drawn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markupsafe import Markup

from dashboards.trajectory import Shown

PLACE = re.compile(
    r"This (?:room|outside location) is called the (.+?)\. (?:In it, you|Here you) see:\s*(.*?)(?:You also see:\s*(.*))?$", re.DOTALL
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
    """What is known of the house.

    Attributes:
        here: The place where the agent is; empty while unknown.
        things: Place to what was last seen there, in words.
        doors: Two places to whether the door between them is open.
        carried: What was picked up, in order.
        task: The task in the world's words.
    """

    here: str = ""
    things: dict[str, list[str]] = field(default_factory=dict)
    doors: dict[frozenset[str], bool] = field(default_factory=dict)
    carried: list[str] = field(default_factory=list)
    task: str = ""

    def hear(self, action: str, observation: str) -> None:
        """Takes in what answered an action."""
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


def house_after(trajectory: Shown, turns: int) -> House:
    """What is known after some turns."""
    house = House()
    task = TASK.search(trajectory.first_observation)
    house.task = task[1] if task else ""
    house.hear("", trajectory.first_observation)
    for turn in trajectory.turns[:turns]:
        house.hear(turn.action, turn.observation)
    return house


def draw(trajectory: Shown, turns: int) -> Markup:
    """The places and what is carried after some turns."""
    house = house_after(trajectory, turns)
    earned = sum(turn.reward for turn in trajectory.turns[:turns])
    places = Markup("").join(_place(house, place) for place in house.things)
    carried = Markup("").join(Markup("<li>{}</li>").format(thing) for thing in house.carried) or Markup("<li class=quiet>nothing</li>")
    return Markup(
        "<p class=question>{}</p><meter min=0 max=1 value={} aria-label='score so far'></meter> score {}"
        "<h3>Carried</h3><ul class=inventory>{}</ul><h3>Places</h3><div class=places>{}</div>"
    ).format(house.task, f"{earned:.3f}", f"{earned:.2f}", carried, places)


def _place(house: House, place: str) -> Markup:
    things = Markup("").join(Markup("<li>{}</li>").format(thing) for thing in house.things[place])
    doors = Markup(", ").join(
        Markup('<span class="{}">{}</span>').format(
            "there" if is_open else "quiet", f"{next(iter(pair - {place}), place)} {'open' if is_open else 'closed'}"
        )
        for pair, is_open in house.doors.items()
        if place in pair
    )
    return Markup('<details class="place {}" {}><summary>{}{}</summary><ul>{}</ul><p class=quiet>doors: {}</p></details>').format(
        "here" if place == house.here else "",
        Markup("open") if place == house.here else "",
        place,
        " — the agent is here" if place == house.here else "",
        things or Markup("<li class=quiet>not looked at yet</li>"),
        doors or "none seen",
    )
