"""The tasks of the world: those of the embedded sites, or WebArena's own; their splits and named lists.

Splits are disjoint by intent template: no template of the test split has been trained on, whatever values it took. The tasks in drawn shops
(`environments.webarena.drawn_shops`) are apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from environments.webarena.addresses import EMBEDDED, Addresses
from environments.webarena.intents.content import content
from environments.webarena.intents.forum import forum
from environments.webarena.intents.intent import Facts, Instance, Intent, Move
from environments.webarena.intents.repositories import repositories
from environments.webarena.intents.shop import shop
from environments.webarena.sites.database import known_state
from environments.webarena.task_files import TaskFile, parse_task

VERSION = "embedded-3"
EVALUATION_SIZE = 50
EVALUATION = f"webarena-ours-{EVALUATION_SIZE}"
_TEST_SHARE, _VALIDATION_SHARE = 0.25, 0.12
EMBEDDED_ADDRESSES = Addresses(EMBEDDED)

Made = tuple[dict[str, Any], tuple[Move, ...]]
"""A task as a JSON object of WebArena's task files, and its plan."""


def make(intent: Intent, template: int, index: int, instance: Instance) -> Made:
    """The task of that index, of that number of a template, with the template's values of `instance`."""
    values, evaluation, plan = instance
    text = intent.wording
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", str(value))
    entry = {
        "sites": [intent.site],
        "task_id": index,
        "require_login": intent.login,
        "storage_state": f"./.auth/{intent.site}_state.json" if intent.login else None,
        "start_url": f"__{intent.site.upper()}__",
        "geolocation": None,
        "intent_template": intent.wording,
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
    for number, intent in enumerate([*shop.intents, *forum.intents, *repositories.intents, *content.intents]):
        for instance in intent.instances(Facts(known_state(), intent.wording)):
            made[len(made)] = make(intent, number, len(made), instance)
    return made


def embedded_entries() -> list[dict[str, Any]]:
    """The embedded tasks as the JSON objects of WebArena's task files."""
    return [entry for entry, _ in _embedded().values()]


@cache
def embedded_tasks() -> Mapping[int, TaskFile]:
    """The embedded tasks by index, without those in drawn shops."""
    return {index: parse_task(entry, EMBEDDED_ADDRESSES, "the embedded tasks") for index, (entry, _) in _embedded().items()}


def plan(index: int) -> tuple[Move, ...]:
    """How an embedded task is done from its start page."""
    return _embedded()[index][1]


def task_lists(tasks: Iterable[TaskFile]) -> dict[str, tuple[int, ...]]:
    """Every named list of task indices, each ascending.

    - "train", "validation", "test": for each site and kind of task, about 63, 12 and 25 % of the intent templates;
    - "webarena-ours-50": 50 tasks of the test split, its templates in turn (all of them if there are fewer): as many as the paper's, but
      not the paper's;
    - "information", "navigation", "change": all tasks of that kind;
    - "shopping", "reddit", ...: all tasks of one site only.
    """
    tasks = list(tasks)
    strata: dict[tuple[str, str], dict[int, list[int]]] = {}
    lists: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        strata.setdefault((task.sites[0], task.kind), {}).setdefault(task.template, []).append(task.index)
        lists.setdefault(task.kind, []).append(task.index)
        if len(task.sites) == 1:
            lists.setdefault(task.sites[0], []).append(task.index)
    held_out: list[list[int]] = []
    taken: dict[int, str] = {}
    for stratum in strata.values():
        templates = sorted(stratum, key=lambda template: _order("split", template))
        n_test = max(round(len(templates) * _TEST_SHARE), len(templates) >= 3)
        n_validation = max(round(len(templates) * _VALIDATION_SHARE), len(templates) >= 4)
        for place, template in enumerate(templates):
            split = "test" if place < n_test else "validation" if place < n_test + n_validation else "train"
            # A template may have tasks on several sites or of several kinds; all of them follow the first.
            split = taken.setdefault(template, split)
            lists[split] += stratum[template]
            if split == "test":
                held_out.append(sorted(stratum[template], key=lambda index: _order("evaluation", index)))
    lists[EVALUATION] = _in_turn(held_out)[:EVALUATION_SIZE]
    return {name: tuple(sorted(some)) for name, some in lists.items()}


def _in_turn(groups: Sequence[Sequence[int]]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    longest = max((len(group) for group in groups), default=0)
    return [group[place] for place in range(longest) for group in groups if place < len(group)]


def _order(purpose: str, what: int | str) -> bytes:
    """A sorting key that shuffles: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {what}".encode()).digest()
