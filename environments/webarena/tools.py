"""The actions of WebArena as tools."""

from environments.tools import Tool, integer, text

_ELEMENT = {"element": integer("Number of the element.")}

TOOLS = (
    Tool("click", "Click on an element.", _ELEMENT, "click [{element}]"),
    Tool(
        "type",
        "Replace the text of a field.",
        _ELEMENT
        | {
            "text": text("The new text."),
            "enter": integer("1 presses Enter afterwards, 0 does not.", 0, 1),
        },
        "type [{element}] [{text}] [{enter}]",
    ),
    Tool("hover", "Move the mouse over an element.", _ELEMENT, "hover [{element}]"),
    Tool(
        "press",
        "Press a key or a combination of keys.",
        {"keys": text("E.g. Enter or Control+a.")},
        "press [{keys}]",
    ),
    Tool(
        "scroll",
        "Scroll the page by one window.",
        {"direction": text("Where to.", "down", "up")},
        "scroll [{direction}]",
    ),
    Tool("new_tab", "Open an empty tab.", action="new_tab"),
    Tool(
        "tab_focus",
        "Bring a tab to the front.",
        {"tab": integer("Number of the tab.")},
        "tab_focus [{tab}]",
    ),
    Tool("close_tab", "Close the current tab.", action="close_tab"),
    Tool("goto", "Open an address.", {"url": text("The address.")}, "goto [{url}]"),
    Tool("go_back", "Go back to the previous page.", action="go_back"),
    Tool("go_forward", "Go forward to the next page.", action="go_forward"),
    Tool(
        "stop",
        "End the task.",
        {"answer": text("The answer. Empty if the task asks for none.")},
        "stop [{answer}]",
    ),
)
