"""Tasks of the world, embedded or from WebArena's files, with their splits and named lists.

Splits are disjoint by intent template: no template of the test split occurs in training, with any
values. Tasks in generated shops (`environments.webarena.drawn_shops`) are separate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from environments.webarena.addresses import EMBEDDED, Addresses
from environments.webarena.intents.intent import Facts, Instance, Intent, Move, read_intents
from environments.webarena.sites.database import known_state
from environments.webarena.task_files import TaskFile, parse_task

VERSION = "embedded-4"
EVALUATION_SIZE = 50
EVALUATION = f"webarena-ours-{EVALUATION_SIZE}"
_INTENTS = {
    "shopping": "shop",
    "reddit": "forum",
    "gitlab": "repositories",
    "shopping_admin": "content",
}
"""WebArena's name of a site -> the file with its intent templates."""
_TEST_SHARE, _VALIDATION_SHARE = 0.25, 0.12
EMBEDDED_ADDRESSES = Addresses(EMBEDDED)

Made = tuple[dict[str, Any], tuple[Move, ...]]
"""A task as a JSON object of WebArena's format, and its plan."""


def make(site: str, intent: Intent, template: int, index: int, instance: Instance) -> Made:
    """Build one task of a template.

    Args:
        site: WebArena's name of the site.
        template: The template's number.
        index: The task's index.
        instance: The template's values, evaluation and plan.
    """
    values, evaluation, plan = instance
    wording = text = f"{intent.wording} {intent.reply}".rstrip()
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", str(value))
    entry = {
        "sites": [site],
        "task_id": index,
        "require_login": intent.login,
        "storage_state": f"./.auth/{site}_state.json" if intent.login else None,
        "start_url": f"__{site.upper()}__",
        "geolocation": None,
        "intent_template": wording,
        "instantiation_dict": values,
        "intent": text,
        "require_reset": False,
        "eval": {"reference_answers": None, "reference_url": "", "program_html": []} | evaluation,
        "intent_template_id": template,
    }
    return entry, tuple(plan)


@cache
def _embedded() -> dict[int, Made]:
    made: dict[int, Made] = {}
    intents = [(site, intent) for site, name in _INTENTS.items() for intent in read_intents(name)]
    for number, (site, intent) in enumerate(intents):
        for instance in intent.instances(site, Facts(known_state(), intent.wording)):
            made[len(made)] = make(site, intent, number, len(made), instance)
    return made


def embedded_entries() -> list[dict[str, Any]]:
    """Return the embedded tasks as JSON objects of WebArena's format."""
    return [entry for entry, _ in _embedded().values()]


@cache
def embedded_tasks() -> Mapping[int, TaskFile]:
    """Return the embedded tasks by index, without those in generated shops."""
    return {
        index: parse_task(entry, EMBEDDED_ADDRESSES, "the embedded tasks")
        for index, (entry, _) in _embedded().items()
    }


def plan(index: int) -> tuple[Move, ...]:
    """Return the solution of an embedded task from its start page."""
    return _embedded()[index][1]


def task_lists(tasks: Iterable[TaskFile]) -> dict[str, tuple[int, ...]]:
    """Return every named list of task indices, in ascending order.

    - "train", "validation", "test": about 63, 12 and 25 % of the intent templates of each site and
      kind of task.
    - "webarena-ours-50": 50 tasks of the test split, taken from its templates in turn, or all tasks
      if there are fewer. The paper also uses 50 tasks, but different ones.
    - "read-only-train", "read-only-validation", "read-only-test": the tasks of that split that
      change nothing on the sites.
    - "information", "navigation", "change": all tasks of that kind, of all splits.
    - "shopping", "reddit", ...: all tasks that use only that site.
    """
    tasks = list(tasks)
    strata: dict[tuple[str, str], dict[int, list[int]]] = {}
    lists: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        strata.setdefault((task.sites[0], task.kind), {}).setdefault(task.template, []).append(
            task.index
        )
        lists.setdefault(task.kind, []).append(task.index)
        if len(task.sites) == 1:
            lists.setdefault(task.sites[0], []).append(task.index)
    held_out: list[list[int]] = []
    taken: dict[int, str] = {}
    for (_, kind), stratum in strata.items():
        templates = sorted(stratum, key=lambda template: _order("split", template))
        n_test = max(round(len(templates) * _TEST_SHARE), len(templates) >= 3)
        n_validation = max(round(len(templates) * _VALIDATION_SHARE), len(templates) >= 4)
        for place, template in enumerate(templates):
            if place < n_test:
                split = "test"
            elif place < n_test + n_validation:
                split = "validation"
            else:
                split = "train"
            # A template may span several sites or kinds. All its tasks join the split of the first.
            split = taken.setdefault(template, split)
            lists[split] += stratum[template]
            if kind != "change":
                lists.setdefault(f"read-only-{split}", []).extend(stratum[template])
            if split == "test":
                held_out.append(
                    sorted(stratum[template], key=lambda index: _order("evaluation", index))
                )
    lists[EVALUATION] = _in_turn(held_out)[:EVALUATION_SIZE]
    return {name: tuple(sorted(some)) for name, some in lists.items()}


def _in_turn(groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the first of each group, then the second of each, and so on."""
    longest = max((len(group) for group in groups), default=0)
    return [group[place] for place in range(longest) for group in groups if place < len(group)]


def _order(purpose: str, what: int | str) -> bytes:
    """Return a sort key for a deterministic shuffle, stable across machines and Python versions."""
    return sha256(f"{purpose}: {what}".encode()).digest()
