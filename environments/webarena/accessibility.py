"""Convert a page's DevTools data into the observation text: a pure function.

Two calls describe a page: the accessibility tree (`Accessibility.getFullAXTree`) and the layout
(`DOMSnapshot.captureSnapshot`). Every node with content gets a number in document order, whether or
not it is in view. The numbers are therefore the same in every run for the same page state, and
scrolling does not change them. The text shows what is in the window, as in WebArena's observations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Node = dict[str, Any]
Box = tuple[float, float, float, float]
"""Left, top, width and height in CSS pixels, relative to the window's upper left corner."""

VIEWPORT = (1280, 720)
SHOWN_SHARE = 0.6
"""Minimum visible fraction of an element's height for it to be in view, as in WebArena."""
MAX_NAME = 1000

_PLAIN = frozenset((
    "article", "banner", "caption", "cell", "columnheader", "complementary", "contentinfo", "definition", "DescriptionList", "emphasis",
    "figure", "form", "generic", "grid", "gridcell", "group", "img", "image", "LabelText", "LayoutTable", "LayoutTableCell",
    "LayoutTableRow", "Legend", "list", "listitem", "main", "MenuListPopup", "navigation", "none", "paragraph", "presentation", "region",
    "rowgroup", "rowheader", "search", "Section", "section", "sectionfooter", "sectionheader", "strong", "subscript", "superscript",
    "table", "time",
))  # fmt: skip
"""Roles without meaning of their own.

Such a node gets a number only if it has a name or a state.
"""
_IN_ROW = frozenset(("cell", "columnheader", "gridcell", "rowheader", "LayoutTableCell"))
FIELDS = frozenset(("textbox", "searchbox", "combobox", "spinbutton"))
"""Roles that accept typed text. Their content is shown on the lines below them."""
_NEVER = frozenset(("InlineTextBox", "LineBreak", "ListMarker"))
_LABELS = frozenset(("LabelText", "Legend", "caption", "Caption"))
"""Roles whose text is the name of the element that they label."""
_STATES = (
    "focused",
    "checked",
    "pressed",
    "selected",
    "expanded",
    "disabled",
    "required",
    "hasPopup",
)
_ONLY_IF_SET = frozenset(("focused", "disabled", "required"))


@dataclass(frozen=True, slots=True)
class Element:
    """A numbered node that is in view.

    Attributes:
        role, name: As in the observation.
        node: Chromium's backend id of the DOM node, valid until the page changes.
        centre: The centre of the visible part, in CSS pixels from the window's upper left corner.
            None if the node has no layout, e.g. an option of a closed menu.
    """

    role: str
    name: str
    node: int
    centre: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class View:
    """The visible part of one page.

    Attributes:
        text: One line per element, indented by depth.
        elements: Elements by their number in `text`.
        title: The page's title.
        url: The page's address.
    """

    text: str
    elements: dict[int, Element]
    title: str
    url: str


def view(tree: list[Node], snapshot: Node, viewport: tuple[int, int] = VIEWPORT) -> View:
    """Build the view of a page.

    Args:
        tree: `nodes` of Accessibility.getFullAXTree.
        snapshot: The result of DOMSnapshot.captureSnapshot for the same moment.
        viewport: Width and height of the window in CSS pixels.
    """
    nodes = {node["nodeId"]: node for node in tree}
    boxes = _boxes(snapshot)
    lines: list[str] = []
    elements: dict[int, Element] = {}
    number = 0
    root = next(node for node in tree if "parentId" not in node)
    # Node, depth of its line, name of the nearest numbered ancestor, role and box of its parent.
    # An explicit stack, because pages nest deeply.
    stack: list[tuple[Node, int, str, str, Box | None]] = [(root, 0, "", "", None)]
    while stack:
        node, depth, above, parent_role, around = stack.pop()
        role = "none" if node.get("ignored") else str(node["role"].get("value", "none"))
        name = _name(node, role, nodes)
        states = _states(node)
        laid_out = boxes.get(node.get("backendDOMNodeId", -1))
        # The snapshot omits nodes inside fields and closed menus. They inherit their parent's box.
        box = laid_out or around
        if _is_worth_a_number(role, name, states, above, parent_role):
            number += 1
            if role == "RootWebArea" or (box is not None and _in_view(box, viewport)):
                lines.append("\t" * depth + f"[{number}] {role} {name!r}" + states)
                centre = None if laid_out is None else _centre(laid_out, viewport)
                elements[number] = Element(role, name, node.get("backendDOMNodeId", -1), centre)
                depth += 1
            above = "" if role in FIELDS else name or above
        if role not in _NEVER:
            children = [nodes[child] for child in node.get("childIds", ()) if child in nodes]
            stack.extend(
                (child, depth, above, role if role != "none" else parent_role, box)
                for child in reversed(children)
            )
    document = snapshot["documents"][0]
    return View(
        "\n".join(lines),
        elements,
        _name(root, "RootWebArea", nodes),
        _string(snapshot, document["documentURL"]),
    )


def _is_worth_a_number(role: str, name: str, states: str, above: str, parent_role: str) -> bool:
    if role in _NEVER or role == "none":
        return False
    if role == "StaticText":
        return bool(name) and name not in above and parent_role not in _LABELS
    if role in _IN_ROW:
        return False
    return bool(name or states) if role in _PLAIN else True


def _name(node: Node, role: str, nodes: dict[str, Node]) -> str:
    name = " ".join(str(node.get("name", {}).get("value", "")).split())
    if not name and role == "row":
        cells = (
            " ".join(str(cell.get("name", {}).get("value", "")).split())
            for cell in _cells(node, nodes)
        )
        name = " | ".join(cell for cell in cells if cell)
    return name[:MAX_NAME]


def _cells(row: Node, nodes: dict[str, Node]) -> list[Node]:
    found: list[Node] = []
    for child in row.get("childIds", ()):
        cell = nodes.get(child)
        if cell is not None:
            found += _cells(cell, nodes) if cell.get("ignored") else [cell]
    return found


def _states(node: Node) -> str:
    values: dict[str, Any] = {
        entry["name"]: entry.get("value", {}).get("value") for entry in node.get("properties", ())
    }
    text = ""
    for state in _STATES:
        value = values.get(state)
        value = value == "true" if value in ("true", "false") else value
        if value is True or (value not in (None, "") and state not in _ONLY_IF_SET):
            text += f" {state}: {value}"
    return text


def _boxes(snapshot: Node) -> dict[int, Box]:
    """Return the window positions of the main document's nodes by backend node id."""
    document = snapshot["documents"][0]
    backend, layout = document["nodes"]["backendNodeId"], document["layout"]
    left, top = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
    boxes: dict[int, Box] = {}
    for index, bounds in zip(layout["nodeIndex"], layout["bounds"], strict=True):
        boxes.setdefault(backend[index], (bounds[0] - left, bounds[1] - top, bounds[2], bounds[3]))
    return boxes


def _in_view(box: Box, viewport: tuple[int, int]) -> bool:
    left, top, width, height = box
    if width <= 0 or height <= 0 or left >= viewport[0] or left + width <= 0:
        return False
    seen = min(top + height, viewport[1]) - max(top, 0)
    return seen >= SHOWN_SHARE * min(height, viewport[1])


def _centre(box: Box, viewport: tuple[int, int]) -> tuple[float, float]:
    left, top, width, height = box
    across = (max(left, 0) + min(left + width, viewport[0])) / 2
    down = (max(top, 0) + min(top + height, viewport[1])) / 2
    return across, down


def _string(snapshot: Node, index: int) -> str:
    strings: list[str] = snapshot["strings"]
    return strings[index] if 0 <= index < len(strings) else ""
