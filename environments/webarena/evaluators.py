"""WebArena's three evaluators (arXiv 2307.13854, section 3.2). Each gives 0 or 1.

An episode's score is the product of the evaluators that its task names.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import Iterable
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Error

from environments.webarena.addresses import Addresses
from environments.webarena.judge import Judge
from environments.webarena.site_queries import LAST_URL, Queries
from environments.webarena.task_files import Check, TaskFile
from environments.webarena.window import Window

OR = " |OR| "
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|\w+(?:[-'.]\w+)*|[^\w\s]")
QUIET_S = 3.0


async def evaluate(
    task: TaskFile, answer: str, window: Window, addresses: Addresses, judge: Judge | None
) -> float:
    """Score a finished episode as 0 or 1. This may leave the agent's last page.

    Args:
        answer: The agent's final answer, possibly empty.
        window: The episode's window.
        addresses: The sites' URLs.
        judge: Language model for fuzzy matches. None disables it.

    Raises:
        WorldError: The episode could not be judged, because a site or the judge did not respond.
    """
    await window.wait_for_services()
    window.check_site()
    last_url = window.page.url
    if "string_match" in task.evaluators and not await string_match(task, answer, judge):
        return 0.0
    if "url_match" in task.evaluators and not url_match(
        task.reference_url, last_url, whole_parts=addresses.embedded
    ):
        return 0.0
    if "program_html" in task.evaluators:
        for check in task.checks:
            if not await _program_html(check, last_url, window, addresses):
                return 0.0
    return 1.0


async def string_match(task: TaskFile, answer: str, judge: Judge | None) -> bool:
    """Whether the answer matches the task's reference answers."""
    given = clean(answer)
    for kind, reference in task.answers:
        if kind == "exact_match":
            if given != clean(reference):
                return False
        elif kind == "must_include":
            if not all(includes(phrase, given, alone=len(reference) == 1) for phrase in reference):
                return False
        elif reference == "N/A":
            # The task is impossible. Both "N/A" and the true reason are correct.
            if given != "n/a" and not (
                given and judge and await judge.gives_reason(task.intent, task.reason, answer)
            ):
                return False
        else:
            for phrase in [reference] if isinstance(reference, str) else reference:
                if (
                    not given
                    or judge is None
                    or not await judge.says_the_same(task.intent, phrase, answer)
                ):
                    return False
    return True


def url_match(reference: str, url: str, *, whole_parts: bool = False) -> bool:
    """Whether `url` is the reference page.

    Its address must contain a reference's address. For each query field of the references it must
    have one of their values.

    Args:
        reference: The reference, possibly with alternatives.
        url: The page's URL.
        whole_parts: Whether the last part of a path must match as a whole, e.g. issues/1 is not in
            issues/10. WebArena's evaluator compares characters only.
    """
    references = [_parts(one) for one in reference.split(OR)]
    address, fields = _parts(url)
    wanted: dict[str, set[str]] = {}
    for _, query in references:
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    end = "/" if whole_parts else ""
    if not any(one + end in address + end for one, _ in references):
        return False
    return all(values.intersection(fields.get(name, ())) for name, values in wanted.items())


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(url.rstrip("/"))
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


def clean(text: str) -> str:
    """Strip white space and one pair of quotes, and lower-case the text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def includes(phrase: str, text: str, *, alone: bool = False) -> bool:
    """Whether `text` contains `phrase`.

    Args:
        phrase: The text to find.
        text: The text to search.
        alone: Whether a phrase of one character must be a separate token, e.g. 0 is not in 10.
    """
    wanted, given = clean(phrase), clean(text)
    return wanted in _TOKEN.findall(given) if alone and len(wanted) == 1 else wanted in given


async def _program_html(check: Check, last_url: str, window: Window, addresses: Addresses) -> bool:
    queries = Queries(window, addresses, last_url)
    url = check.url
    if url.startswith("func"):
        url = await queries.run(url.partition("func:")[2])
        if not url:  # the page that the task creates does not exist
            return False
    if url != "last":
        await _open(url, window, addresses, written=LAST_URL in check.url)
    text = html.unescape(await _locate(check, window, queries))
    if check.exact is not None:
        return clean(text) == clean(check.exact)
    return all(any(includes(one, text) for one in phrase.split(OR)) for phrase in check.included)


async def _open(url: str, window: Window, addresses: Addresses, *, written: bool) -> None:
    await window.show(url, written=written)
    if not addresses.embedded:
        # Real sites keep building a page after it has loaded.
        with contextlib.suppress(Error):
            await window.page.wait_for_load_state("networkidle", timeout=QUIET_S * 1000)
        await window.wait_for_services()


async def _locate(check: Check, window: Window, queries: Queries) -> str:
    """Return the text that a check refers to. Empty if the page lacks the element."""
    locator = check.locator.strip()
    if not locator:
        return await window.page.content()
    if locator.startswith("func:"):
        return await queries.run(locator.removeprefix("func:"))
    await _prepare(check.prepare, window)
    try:
        found = await window.page.evaluate(f"() => {locator}")
    except Error as fault:
        if "closed" in fault.message or "crash" in fault.message:
            raise
        return ""
    return "" if found is None else str(found)


async def _prepare(scripts: Iterable[str], window: Window) -> None:
    for script in scripts:
        with contextlib.suppress(Error):
            await window.page.evaluate(f"() => {script}")
            await asyncio.sleep(0)
