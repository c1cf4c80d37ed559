"""Candidate actions on a page, independent of the objective's meaning.

The "random" baseline samples them.
"""

from __future__ import annotations

import re

from environments.webarena.accessibility import View
from environments.webarena.actions import MAX_TYPED

CLICKED = ("link", "button", "checkbox", "radio", "tab", "menuitem", "option")
TYPED = ("textbox", "searchbox", "combobox", "spinbutton")
_QUOTED = re.compile(r"[\"'“]([^\"'”]+)[\"'”]|([A-Z][\w-]*(?: [A-Z][\w-]*)*)")


def possible_actions(seen: View, objective: str) -> list[str]:
    """List clicks, typed texts, scrolling, going back and stopping with an answer.

    Fields get the quoted and capitalised phrases of the objective. Answers are names on the page.

    Args:
        seen: The page in view.
        objective: The task's intent.
    """
    texts = list(
        dict.fromkeys(
            (quoted or capital)[:MAX_TYPED] for quoted, capital in _QUOTED.findall(objective)
        )
    )
    actions = ["scroll [down]", "go_back", "stop []"]
    answers = []
    for number, element in seen.elements.items():
        if element.role in CLICKED:
            actions.append(f"click [{number}]")
        elif element.role in TYPED:
            actions += [f"type [{number}] [{text}] [1]" for text in texts]
        elif element.name and "]" not in element.name:
            answers.append(f"stop [{element.name}]")
    return [*actions, *dict.fromkeys(answers)]
