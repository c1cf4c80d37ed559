"""Tests of the numbered text that WebArena makes of a page's accessibility tree and layout."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from environments.webarena.accessibility import View, view


class Page:
    """A builder of the nodes and the layout that DevTools reports for a page."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.boxes: dict[int, list[float]] = {}
        self.root = self.add("RootWebArea", "Page", None, box=(0, 0, 1280, 720))

    def add(
        self,
        role: str,
        name: str,
        parent: str | None,
        *,
        box: tuple[float, float, float, float] | None = (0, 0, 100, 20),
        **states: object,
    ) -> str:
        identity = str(len(self.nodes) + 1)
        node: dict[str, Any] = {
            "nodeId": identity,
            "ignored": False,
            "role": {"value": role},
            "name": {"value": name},
            "childIds": [],
        }
        node["backendDOMNodeId"] = 100 + len(self.nodes)
        node["properties"] = [
            {"name": state, "value": {"value": value}} for state, value in states.items()
        ]
        if parent is not None:
            node["parentId"] = parent
            next(other for other in self.nodes if other["nodeId"] == parent)["childIds"].append(
                identity
            )
        if box is not None:
            self.boxes[node["backendDOMNodeId"]] = list(box)
        self.nodes.append(node)
        return identity

    def view(self, scrolled: float = 0) -> View:
        backend = list(self.boxes)
        snapshot = {
            "strings": ["http://shop.test/"],
            "documents": [
                {
                    "documentURL": 0,
                    "scrollOffsetX": 0,
                    "scrollOffsetY": scrolled,
                    "nodes": {"backendNodeId": backend},
                    "layout": {
                        "nodeIndex": list(range(len(backend))),
                        "bounds": [self.boxes[node] for node in backend],
                    },
                }
            ],
        }
        return view(self.nodes, snapshot)


def lines(seen: View) -> list[str]:
    return seen.text.splitlines()


def test_elements_are_numbered_in_document_order_and_indented_by_depth() -> None:
    page = Page()
    menu = page.add("navigation", "Site", page.root)
    page.add("link", "Home", menu)
    page.add("link", "Cart", menu)
    seen = page.view()
    assert lines(seen) == [
        "[1] RootWebArea 'Page'",
        "\t[2] navigation 'Site'",
        "\t\t[3] link 'Home'",
        "\t\t[4] link 'Cart'",
    ]
    assert (seen.title, seen.url) == ("Page", "http://shop.test/")
    assert (seen.elements[4].role, seen.elements[4].name, seen.elements[4].centre) == (
        "link",
        "Cart",
        (50, 10),
    )


def test_scrolling_shows_other_elements_under_the_same_numbers() -> None:
    page = Page()
    for place in range(100):
        page.add("link", f"Link {place}", page.root, box=(0, place * 24, 100, 24))
    top, below = page.view(), page.view(scrolled=720)
    assert "[2] link 'Link 0'" in top.text
    assert "Link 40'" not in top.text
    assert "[42] link 'Link 40'" in below.text
    assert "Link 0'" not in below.text
    assert top.elements.keys() & below.elements.keys() == {1}
    assert below.elements[42].centre == (50, 40 * 24 - 720 + 12)


def test_element_is_in_view_if_most_of_it_is_visible() -> None:
    page = Page()
    page.add("button", "mostly in", page.root, box=(0, 705, 100, 24))
    page.add("button", "mostly out", page.root, box=(0, 706, 100, 24))
    page.add("button", "beside", page.root, box=(1280, 0, 100, 24))
    page.add("button", "without size", page.root, box=(0, 0, 0, 24))
    page.add("StaticText", "taller than the window", page.root, box=(0, -100, 100, 5000))
    text = page.view().text
    assert "mostly in" in text
    assert "taller than the window" in text
    assert not any(name in text for name in ("mostly out", "beside", "without size"))


def test_structure_without_a_name_and_text_that_repeats_a_name_are_left_out() -> None:
    page = Page()
    paragraph = page.add("paragraph", "", page.root)
    page.add("StaticText", "Hello", paragraph)
    link = page.add("link", "More about it", page.root)
    page.add("StaticText", "More about it", link)
    label = page.add("LabelText", "", page.root)
    page.add("StaticText", "Street", label)
    page.add("textbox", "Street", label)
    assert lines(page.view()) == [
        "[1] RootWebArea 'Page'", "\t[2] StaticText 'Hello'", "\t[3] link 'More about it'", "\t[4] textbox 'Street'",
    ]  # fmt: skip


def test_a_row_is_one_line_with_its_controls_below() -> None:
    page = Page()
    row = page.add("row", "", page.add("table", "", page.root))
    name, price = page.add("cell", "Lamp", row), page.add("cell", "$3", row)
    page.add("link", "Lamp", name)
    page.add("StaticText", "$3", price)
    assert lines(page.view()) == [
        "[1] RootWebArea 'Page'",
        "\t[2] row 'Lamp | $3'",
        "\t\t[3] link 'Lamp'",
    ]


def test_the_content_of_a_field_is_shown() -> None:
    page = Page()
    field = page.add("textbox", "City", page.root, focused=True, required=False)
    page.add("StaticText", "City", field, box=None)
    assert lines(page.view())[1:] == [
        "\t[2] textbox 'City' focused: True",
        "\t\t[3] StaticText 'City'",
    ]


def test_relevant_states_are_shown() -> None:
    page = Page()
    page.add("radio", "red", page.root, checked="false", focusable=True)
    page.add("checkbox", "news", page.root, checked="mixed")
    page.add("button", "Send", page.root, disabled=True)
    page.add("option", "one", page.root, selected=False)
    assert [line.partition("] ")[2] for line in lines(page.view())[1:]] == [
        "radio 'red' checked: False", "checkbox 'news' checked: mixed", "button 'Send' disabled: True", "option 'one' selected: False",
    ]  # fmt: skip


def test_option_of_a_closed_menu_is_shown_below_its_menu_without_a_position() -> None:
    page = Page()
    menu = page.add("combobox", "Kind", page.root)
    page.add("option", "One", page.add("MenuListPopup", "", menu, box=None), box=None)
    seen = page.view()
    assert lines(seen)[-1] == "\t\t[3] option 'One'"
    assert seen.elements[3].centre is None


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["link", "generic", "StaticText", "row", "cell", "textbox", "none"]),
            st.text(max_size=5),
            st.integers(0, 9),
        )
    ),
    st.integers(0, 2000),
)
def test_any_tree_has_a_view_whose_lines_are_its_elements(
    made: list[tuple[str, str, int]], scrolled: int
) -> None:
    page = Page()
    for place, (role, name, parent) in enumerate(made):
        above = page.nodes[parent % len(page.nodes)]["nodeId"]
        page.add(role, name, above, box=(0, place * 30, 50, 20) if place % 4 else None)
    seen = page.view(scrolled)
    assert len(lines(seen)) == len(seen.elements)
    assert list(seen.elements) == sorted(seen.elements)
    for element in list(seen.elements.values())[1:]:
        assert element.centre is None or (
            0 <= element.centre[0] <= 1280 and 0 <= element.centre[1] <= 720
        )
