"""Tasks in WebArena's format: JSON objects in one file, or in a folder of files `<idx>.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from environments.environment import WorldError
from environments.webarena.addresses import NAMES, Addresses

EvaluatorName = Literal["string_match", "url_match", "program_html"]
_EVALUATORS = ("string_match", "url_match", "program_html")
_ANSWERS = ("exact_match", "must_include", "fuzzy_match")


class TaskFileError(WorldError):
    """A task file violates WebArena's format. The message names file, field and fix."""


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of `program_html`.

    Attributes:
        url: The page to inspect: a URL, "last" for the agent's last page, or "func:..." for a query
            that returns the URL.
        locator: JavaScript that finds a text, or "func:..." for a query. Empty for the whole page.
        exact: The expected text. None if `included` is used.
        included: Phrases that the text must contain. Each may list alternatives.
        prepare: JavaScript to run first.
    """

    url: str
    locator: str
    exact: str | None
    included: tuple[str, ...]
    prepare: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One task.

    Attributes:
        index: WebArena's task_id.
        intent: The instruction to the agent.
        template: The number of the intent's template. Tasks of one template differ only in values.
        sites: Names of the sites that the task concerns.
        start_urls: The pages open at the start, one tab each.
        storage_state: The file with the cookies of the signed-in account. None for no account.
        geolocation: Latitude and longitude in degrees. None if the task has none.
        evaluators: The evaluators that judge the final state. All must succeed.
        answers: string_match: the kinds of comparison and their references.
        reason: string_match: why an impossible task cannot be done.
        reference_url: url_match: the expected final page, possibly with alternatives.
        checks: program_html: the expected content of pages.
    """

    index: int
    intent: str
    template: int
    sites: tuple[str, ...]
    start_urls: tuple[str, ...]
    storage_state: str | None
    geolocation: tuple[float, float] | None
    evaluators: tuple[EvaluatorName, ...]
    answers: tuple[tuple[str, Any], ...]
    reason: str
    reference_url: str
    checks: tuple[Check, ...]

    @property
    def kind(self) -> Literal["information", "navigation", "change"]:
        """The kind of goal, derived from the evaluators: an answer, a page, or a changed site."""
        if "program_html" in self.evaluators:
            return "change"
        return "information" if "string_match" in self.evaluators else "navigation"

    @property
    def needs_judge(self) -> bool:
        """Whether a language model must compare the answer."""
        return any(name == "fuzzy_match" for name, _ in self.answers)


def read_tasks(path: Path, addresses: Addresses) -> list[TaskFile]:
    """Read tasks from a file with a list, e.g. test.raw.json, or a folder of files `<idx>.json`.

    Tasks on sites without a URL are skipped.

    Returns:
        The tasks in ascending order of their index.

    Raises:
        TaskFileError: A file is missing, is not JSON or violates the format.
    """
    if not path.is_dir() and not path.is_file():
        fix = "set it to a folder of WebArena's task files or a file with a list of them"
        raise TaskFileError(f"WEBARENA_TASKS: {path} does not exist; {fix}")
    if path.is_dir():
        files = sorted(file for file in path.glob("*.json") if file.stem.isdecimal())
    else:
        files = [path]
    if not files:
        raise TaskFileError(f"{path} has no task files; they are named 0.json, 1.json and so on")
    tasks: list[TaskFile] = []
    unset: set[str] = set()
    for file in files:
        try:
            content = json.loads(file.read_text("utf-8"))
        except (ValueError, RecursionError) as malformed:
            raise TaskFileError(f"{file} is not JSON: {malformed}") from malformed
        except OSError as fault:
            raise TaskFileError(f"{file} cannot be read: {fault.strerror}") from fault
        for entry in content if isinstance(content, list) else [content]:
            sites = entry.get("sites") if isinstance(entry, dict) else None
            if isinstance(sites, list) and any(
                name in NAMES and name not in addresses.urls for name in sites
            ):
                unset |= {name for name in sites if name not in addresses.urls}
                continue
            tasks.append(parse_task(entry, addresses, str(file)))
    if not tasks:
        wanted = ", ".join(sorted(name.upper() for name in unset))
        raise TaskFileError(
            f"{path} has no tasks on sites with a URL; set {wanted}"
            if wanted
            else f"{path} has no tasks"
        )
    tasks.sort(key=lambda task: task.index)
    for before, task in pairwise(tasks):
        if before.index == task.index:
            raise TaskFileError(f"{path}: two tasks have the task_id {task.index}")
    return tasks


def parse_task(entry: Any, addresses: Addresses, source: str) -> TaskFile:
    """Parse one task from its JSON object and replace placeholders by URLs.

    Args:
        entry: The JSON object.
        addresses: The sites' URLs.
        source: Where the object was read, for error messages.

    Raises:
        TaskFileError: The object violates the format.
    """
    read = _Reader(entry, source)
    where = f"{source}, task {read.optional('task_id', object)}"
    read.source = where
    judged = _Reader(read.required("eval", dict), f"{where}, eval")
    evaluators = tuple(judged.required("eval_types", list))
    unknown = [name for name in evaluators if name not in _EVALUATORS]
    if unknown or not evaluators:
        raise TaskFileError(
            f"{where}: eval_types {list(evaluators)} must name some of {', '.join(_EVALUATORS)}"
        )
    answers = (
        judged.optional("reference_answers", dict) or {} if "string_match" in evaluators else {}
    )
    if ("string_match" in evaluators and not answers) or any(
        name not in _ANSWERS for name in answers
    ):
        raise TaskFileError(
            f"{where}: reference_answers {sorted(answers)} must be some of {', '.join(_ANSWERS)}"
        )
    note = judged.optional("url_note", str) or "GOLD in PRED"
    for name, wanted in answers.items():
        if name == "must_include" or (name == "fuzzy_match" and isinstance(wanted, list)):
            texts = wanted
        else:
            texts = [wanted]
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(text, str) for text in texts)
        ):
            raise TaskFileError(
                f"{where}: {name} must hold "
                f"{'a list of texts' if name == 'must_include' else 'a text'}, not {wanted!r}"
            )
    if "url_match" in evaluators and note != "GOLD in PRED":
        raise TaskFileError(f"{where}: url_note is {note!r}; only 'GOLD in PRED' is known")
    programs = judged.optional("program_html", list) or [] if "program_html" in evaluators else []
    sites = tuple(read.required("sites", list))
    if not sites or any(site not in NAMES for site in sites):
        raise TaskFileError(f"{where}: sites {list(sites)} must name some of {', '.join(NAMES)}")
    return TaskFile(
        index=read.required("task_id", int),
        intent=read.required("intent", str),
        template=read.optional("intent_template_id", int) or 0,
        sites=sites,
        start_urls=tuple(
            addresses.fill(url.strip()) for url in read.required("start_url", str).split(" |AND| ")
        ),
        storage_state=read.optional("storage_state", str),
        geolocation=_place(read),
        evaluators=evaluators,
        answers=tuple(answers.items()),
        reason=judged.optional("string_note", str) or "",
        reference_url=addresses.fill(judged.optional("reference_url", str) or ""),
        checks=tuple(
            _check(_Reader(program, f"{where}, program_html"), addresses) for program in programs
        ),
    )


def _place(read: _Reader) -> tuple[float, float] | None:
    place = read.optional("geolocation", dict)
    if not place:
        return None
    try:
        return float(place["latitude"]), float(place["longitude"])
    except (KeyError, TypeError, ValueError) as wrong:
        raise TaskFileError(
            f"{read.source}: geolocation must hold numbers for latitude and longitude, not {place}"
        ) from wrong


def _check(read: _Reader, addresses: Addresses) -> Check:
    wanted = read.required("required_contents", dict)
    exact, included = wanted.get("exact_match"), wanted.get("must_include", [])
    if (
        not isinstance(exact, str | None)
        or not isinstance(included, list)
        or (exact is None and "must_include" not in wanted)
    ):
        raise TaskFileError(
            f"{read.source}: required_contents needs exact_match with a text or must_include with "
            "a list"
        )
    prepare = tuple(read.optional("prep_actions", list) or ())
    return Check(
        addresses.fill(read.required("url", str)),
        read.required("locator", str),
        exact if exact is None else addresses.fill(exact),
        tuple(map(addresses.fill, included)),
        prepare,
    )


class _Reader:
    """Reads and type-checks the fields of a JSON object."""

    def __init__(self, entry: Any, source: str) -> None:
        if not isinstance(entry, dict):
            raise TaskFileError(f"{source}: expected a JSON object, not {type(entry).__name__}")
        self._entry = entry
        self.source = source

    def optional(self, name: str, kind: type) -> Any:
        value = self._entry.get(name)
        if value is not None and not isinstance(value, kind):
            raise TaskFileError(
                f"{self.source}: {name} must be of type {kind.__name__}, not {type(value).__name__}"
            )
        return value

    def required(self, name: str, kind: type) -> Any:
        value = self.optional(name, kind)
        if value is None:
            raise TaskFileError(f"{self.source}: the field {name} is missing")
        return value
