"""The actions of SciWorld as tools."""

from environments.tools import Schema, Tool, integer, text

_OBJECT = text("The object, as the messages call it.")


def _on_object(verb: str, description: str) -> Tool:
    return Tool(verb.replace(" ", "_"), description, {"object": _OBJECT}, f"{verb} {{object}}")


def _on_two(name: str, description: str, action: str) -> Tool:
    parameters: dict[str, Schema] = {"object": _OBJECT, "other": text("The other object.")}
    return Tool(name, description, parameters, action)


TOOLS = (
    Tool("look_around", "Describe the room.", action="look around"),
    Tool("inventory", "List what you carry.", action="inventory"),
    Tool("task", "Repeat the task.", action="task"),
    Tool("wait", "Let ten moments pass.", action="wait"),
    Tool("wait_one", "Let one moment pass.", action="wait1"),
    _on_object("look at", "Describe an object."),
    _on_object("look in", "Describe the content of a container."),
    _on_object("examine", "Describe an object in detail."),
    _on_object("open", "Open a door or a container."),
    _on_object("close", "Close a door or a container."),
    _on_object("go to", "Go to a place. The door to it must be open."),
    _on_object("pick up", "Put an object into your inventory."),
    _on_object("put down", "Put down an object of your inventory."),
    _on_object("drop", "Drop an object of your inventory."),
    _on_two("move", "Move an object into a container.", "move {object} to {other}"),
    _on_two("pour", "Pour a liquid into a container.", "pour {object} into {other}"),
    _on_two("dunk", "Dunk an object into a liquid.", "dunk {object} into {other}"),
    _on_object("mix", "Mix what is in a container."),
    _on_object("activate", "Switch a device on."),
    _on_object("deactivate", "Switch a device off."),
    _on_two("use_on", "Use an object on another one.", "use {object} on {other}"),
    _on_object("use", "Use an object."),
    _on_two("connect", "Connect an object to another one.", "connect {object} to {other}"),
    _on_object("disconnect", "Disconnect an object."),
    _on_object("read", "Read an object."),
    _on_object("eat", "Eat an object."),
    _on_object("flush", "Flush an object."),
    _on_object(
        "focus on",
        "Focus on an object of the task, when the task asks for it. The wrong object fails the "
        "task.",
    ),
    Tool(
        "choose",
        "Choose one of the listed meanings of an action.",
        {"number": integer("Its number.")},
        "{number}",
    ),
)
