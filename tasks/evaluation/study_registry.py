"""The registry of studies: what each study states before its first run, and which tasks it looks at.

A study is registered once, under its name. Afterwards a changed study is refused, and so is another
study that measures the same held-out tasks. The registry is a file of JSON lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from configs.config_model import ConfigModel
from configs.environment import Environment
from configs.experiment import Experiment
from configs.mixture import member_of, members
from configs.recipe import RecipeError, dotted
from configs.study import Study
from configs.task_selection import TaskSelection, selection_name
from environments.environment import WorldError
from environments.registry import load_world
from environments.selection import selected_tasks
from tasks.files import append_row, locked, replace_file

FILE, FROZEN = "registry.jsonl", "registration.json"
"""The registry, and the copy of a registration in the study's folder."""
FREE = {"train", "validation"}
"""A list with one of these words in its name may be measured by any number of studies."""


class StudyChangedError(RecipeError):
    """A study differs from what was registered under its name.

    Attributes:
        changes: Dotted name of each changed field, with both values.
    """

    def __init__(self, message: str, changes: list[str]) -> None:
        super().__init__(message)
        self.changes = changes


class TasksLookedAtError(RecipeError):
    """Other studies have measured held-out tasks of this study.

    Attributes:
        looks: The lists of this study, with the other studies and the number of common tasks.
    """

    def __init__(self, message: str, looks: tuple[Look, ...]) -> None:
        super().__init__(message)
        self.looks = looks


class RegisteredList(ConfigModel):
    """A task list of a study."""

    world: str
    """Name of its world, or of one world of a mixture."""
    version: str
    """The world's version. The same index may mean another task in another version."""
    name: str
    """Name of the list."""
    use: Literal["training", "evaluation"]
    """What the study uses it for."""
    n_tasks: int
    """Number of tasks."""
    digest: str
    """SHA-256 of world, version and task indices, 16 hex digits."""
    held_out: tuple[int, ...] = ()
    """Indices of tasks that no other study may measure. Empty: the list is free."""


class Look(ConfigModel):
    """An earlier measurement of the same held-out tasks."""

    list_name: str
    """Name of the list in this study."""
    study: str
    """The study that measured them first."""
    n_tasks: int
    """Number of common tasks."""
    version: str = ""
    """The world's version then. Empty: the same as now.

    In another version an index may mean another task, so such a look is reported and not refused.
    """


class Registration(ConfigModel):
    """A study as it is before its first run."""

    study: Study
    """Arms, seeds, endpoint, comparisons and smallest effect of interest."""
    recipes: dict[str, dict[str, Any]]
    """The whole recipe of each arm under the first seed."""
    lists: tuple[RegisteredList, ...]
    """The task lists of training and evaluation."""
    registered: str | None
    """Time in UTC. Empty: a run of the study is older than its registration."""
    look_again: str | None = None
    """The stated reason to measure tasks that other studies had measured."""
    looks: tuple[Look, ...] = ()
    """Earlier measurements of the same held-out tasks."""


def register(
    study: Study,
    folder: Path,
    files: tuple[Path, Path],
    look_again: str | None,
    begun: bool = False,
) -> Registration:
    """Register a study, unless it is registered already, and keep a copy in its folder.

    Args:
        folder: Its folder. It is created if the study is accepted.
        files: The registry that is written, and the published one that is only read.
        look_again: A reason to measure held-out tasks that other studies have measured.
        begun: Whether one of its runs exists. A new registration then has no time, since it is not
            from before the first run.

    Raises:
        StudyChangedError: The study differs from the one that was registered under its name.
        TasksLookedAtError: Others have measured its held-out tasks, and no reason is given.
        RecipeError: A file is damaged, or a task list cannot be read.
    """
    new = registration_of(study)
    files[0].parent.mkdir(parents=True, exist_ok=True)
    with locked(files[0].with_suffix(".lock")):
        known = [each for file in files for each in read_registry(file)]
        if earlier := _named(study.name, known):
            for each in earlier:
                _check_unchanged(each, new)
            made = earlier[0]
        else:
            looks = _looks(new, known)
            same = tuple(look for look in looks if not look.version)
            if same and not look_again:
                raise TasksLookedAtError(_looked_at(study, same), same)
            made = new.model_copy(
                update={
                    "looks": looks,
                    "look_again": look_again if same else None,
                    "registered": None if begun else new.registered,
                }
            )
            append_row(files[0], made.model_dump(mode="json"), durable=True)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / FROZEN, json.dumps(made.model_dump(mode="json"), indent=1) + "\n")
    return made


def registered(study: Study, files: Iterable[Path]) -> Registration | None:
    """Return the study's registration, the earliest if several machines made one.

    None if it was never registered, or if a registration under its name has other fields.
    """
    new = registration_of(study)
    earlier = _named(study.name, (each for file in files for each in read_registry(file)))
    return earlier[0] if earlier and not any(changes(each, new) for each in earlier) else None


def publish(registration: Registration, file: Path) -> None:
    """Add a registration to the published registry, unless it is there."""
    names = {each.study.name for each in read_registry(file)}
    if registration.study.name not in names:
        append_row(file, registration.model_dump(mode="json"))


def read_registry(file: Path) -> list[Registration]:
    """Return all registrations of a file. Empty if the file does not exist.

    Raises:
        RecipeError: A line is not a registration.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Registration.model_validate_json(line))
        except ValidationError as problem:
            raise RecipeError(
                f"{file}, line {number}, is not the registration of a study. Restore the file.",
                problem,
            ) from None
    return found


def registration_of(study: Study) -> Registration:
    """Return what a study states now.

    Raises:
        RecipeError: A world or one of its task lists cannot be read.
    """
    recipes = {arm: study.experiment(arm, study.seeds[0]) for arm in study.arms}
    lists: dict[RegisteredList, None] = {}
    for recipe in recipes.values():
        world, measured = recipe.environment, recipe.evaluation
        own = (measured.tasks, measured.n_tasks)
        further = study.beyond.tasks if study.beyond else ()
        for tasks, first in (own, *((each, None) for each in further)):
            lists |= dict.fromkeys(_lists(world, tasks, first, "evaluation"))
        trained = world.train_tasks, world.n_train_tasks
        lists |= dict.fromkeys(_lists(world, *trained, "training"))
    return Registration(
        study=study,
        recipes={arm: recipe.model_dump(mode="json") for arm, recipe in recipes.items()},
        lists=tuple(lists),
        registered=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    )


def changes(old: Registration, new: Registration) -> list[str]:
    """Return the fields and task lists in which two registrations differ, with both values."""
    found = _differing(
        dotted(old.study.model_dump(mode="json")), dotted(new.study.model_dump(mode="json"))
    )
    for arm in old.recipes.keys() & new.recipes.keys():
        before, now = (dotted(_present(each.recipes[arm])) for each in (old, new))
        found += [f"arm {arm}, {each}" for each in _differing(before, now)]
    before, now = (
        {f"{each.use} list {each.name} of {each.world}": each.digest for each in one.lists}
        for one in (old, new)
    )
    return found + _differing(before, now)


def _named(name: str, known: Iterable[Registration]) -> list[Registration]:
    """Return the registrations under a name by time. One from before the registry comes first."""
    made = [each for each in known if each.study.name == name]
    return sorted(made, key=lambda each: each.registered or "")


def _check_unchanged(made: Registration, new: Registration) -> None:
    if found := changes(made, new):
        when = f"registered on {made.registered}" if made.registered else "published"
        raise StudyChangedError(
            f"The study {made.study.name!r} was {when} with other values:\n- "
            + "\n- ".join(found)
            + "\nRestore them, or give the changed study another name, e.g. --name "
            f"{made.study.name}-2.",
            found,
        )


def _looks(new: Registration, known: Iterable[Registration]) -> tuple[Look, ...]:
    """Return the first earlier measurement of each held-out list, for each version of its world."""
    found: dict[tuple[str, str], Look] = {}
    for each in new.lists:
        for other in known:
            theirs: dict[str, set[int]] = {}
            for one in other.lists:
                if one.world == each.world:
                    theirs.setdefault(one.version, set()).update(one.held_out)
            for version, tasks in theirs.items():
                if common := tasks & set(each.held_out):
                    look = Look(
                        list_name=each.name,
                        study=other.study.name,
                        n_tasks=len(common),
                        version="" if version == each.version else version,
                    )
                    found.setdefault((each.name, version), look)
    return tuple(found.values())


def _looked_at(study: Study, looks: Iterable[Look]) -> str:
    lines = [
        f"- {each.list_name}: {each.n_tasks} tasks were measured by the study {each.study!r}"
        for each in looks
    ]
    return (
        f"The study {study.name!r} measures held-out tasks that were looked at before:\n"
        + "\n".join(lines)
        + "\nChoices may depend on those results. Set evaluation.tasks or beyond.tasks to a list "
        "that no study has measured, use a validation list, or state a reason with "
        '--look-again "REASON". The report prints it.'
    )


def _lists(
    world: Environment,
    selection: TaskSelection,
    first: int | None,
    use: Literal["training", "evaluation"],
) -> list[RegisteredList]:
    """Return a task selection as one list for each world of a mixture."""
    try:
        known = _world(world.name, world.rules)
        tasks = selected_tasks(known, world.name, selection)[:first]
        versions = {name: _world(name, world.rules).version for name in members(world.name)}
    except (ImportError, WorldError, OSError, KeyError) as problem:
        raise RecipeError(
            f"the task list {selection_name(selection)} of {world.name} cannot be read here: "
            f"{problem}. A study registers its tasks, so install the world's package"
        ) from None
    name = selection_name(selection)
    free = use == "training" or (isinstance(selection, str) and _is_free(selection))
    found = []
    for member, version in versions.items():
        own = sorted(
            {index for task in tasks for at, index in [member_of(world.name, task)] if at == member}
        )
        facts = json.dumps([member, version, own])
        found.append(
            RegisteredList(
                world=member,
                version=version,
                name=name,
                use=use,
                n_tasks=len(own),
                digest=hashlib.sha256(facts.encode()).hexdigest()[:16],
                held_out=() if free else tuple(own),
            )
        )
    return found


_world = cache(load_world)


def _is_free(name: str) -> bool:
    return all(FREE & set(part.split("-")) for part in name.split("+"))


def _present(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored recipe without seeds, with the defaults of fields added since."""
    with suppress(ValidationError):  # for a field that recipes no longer have
        recipe = Experiment.model_validate(recipe).model_dump(mode="json")
    return {section: fields for section, fields in recipe.items() if section != "seeds"}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {json.dumps(old.get(name))}, now {json.dumps(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
