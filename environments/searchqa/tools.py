"""The actions of SearchQA as tools."""

from environments.tools import Tool, text

TOOLS = (
    Tool(
        "search",
        "Search for passages.",
        {"query": text("What to search for.")},
        "<search>{query}</search>",
    ),
    Tool(
        "answer",
        "Give the answer to the question.",
        {"answer": text("The answer alone, in a few words.")},
        "<answer>{answer}</answer>",
    ),
)
