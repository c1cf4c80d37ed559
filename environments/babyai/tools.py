"""The actions of BabyAI as tools."""

from environments.babyai.actions import CHECK
from environments.tools import Tool, text

_THING = {"thing": text("Name and number of a thing in view, e.g. red ball 1.")}
_DOOR = {"door": text("Name and number of a door in view, e.g. red open door 1.")}

TOOLS = (
    Tool("turn_left", "Turn left.", action="turn left"),
    Tool("turn_right", "Turn right.", action="turn right"),
    Tool("move_forward", "Take one step ahead.", action="move forward"),
    Tool("go_to", "Walk up to a thing and face it.", _THING, "go to {thing}"),
    Tool("pick_up", "Walk up to a key, ball or box and pick it up.", _THING, "pickup {thing}"),
    Tool("drop", "Put down what you carry.", action="drop"),
    Tool("toggle", "Open or close the door, or open the box, in front of you.", action="toggle"),
    Tool("go_through", "Walk through an open door.", _DOOR, "go through {door}"),
    Tool(
        "toggle_and_go_through",
        "Walk up to a closed door, open it and go through.",
        _DOOR,
        "toggle and go through {door}",
    ),
    Tool("check_actions", "List the actions that you have now.", action=CHECK),
)
