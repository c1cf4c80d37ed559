"""How an episode is judged: WebArena's three evaluators (arXiv 2307.13854, section 3.2), each 0 or 1; their product is the score."""

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
from environments.webarena.site_queries import Queries
from environments.webarena.task_files import Check, TaskFile
from environments.webarena.window import Window

OR = " |OR| "
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|\w+(?:[-'.]\w+)*|[^\w\s]")
QUIET_S = 3.0


async def evaluate(task: TaskFile, answer: str, window: Window, addresses: Addresses, judge: Judge | None) -> float:
    """The score, 0 or 1, of an episode that has come to its end. May leave the page that the agent was on.

    Raises:
        WorldError: It could not be judged: a site or the judge did not answer.
    """
    last_url = window.page.url
    if "string_match" in task.evaluators and not await string_match(task, answer, judge):
        return 0.0
    if "url_match" in task.evaluators and not url_match(task.reference_url, last_url):
        return 0.0
    if "program_html" in task.evaluators:
        for check in task.checks:
            if not await _program_html(check, last_url, window, addresses):
                return 0.0
    return 1.0


async def string_match(task: TaskFile, answer: str, judge: Judge | None) -> bool:
    """Whether the answer is what the task's references ask for."""
    given = clean(answer)
    for kind, reference in task.answers:
        if kind == "exact_match":
            if given != clean(reference):
                return False
        elif kind == "must_include":
            if not all(includes(phrase, given, alone=len(reference) == 1) for phrase in reference):
                return False
        elif reference == "N/A":
            # The task cannot be done. Saying just that is right; so is giving the true reason.
            if given != "n/a" and not (given and judge and await judge.gives_reason(task.intent, task.reason, answer)):
                return False
        else:
            for phrase in [reference] if isinstance(reference, str) else reference:
                if not given or judge is None or not await judge.says_the_same(task.intent, phrase, answer):
                    return False
    return True


def url_match(reference: str, url: str) -> bool:
    """Whether `url` is the reference page: its address holds the reference's, and it has one of the values of each of its fields."""
    references = [_parts(one) for one in reference.split(OR)]
    address, fields = _parts(url)
    wanted: dict[str, set[str]] = {}
    for _, query in references:
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    if not any(one in address for one, _ in references):
        return False
    return all(values.intersection(fields.get(name, ())) for name, values in wanted.items())


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(url.rstrip("/"))
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


def clean(text: str) -> str:
    """`text` without space and one pair of quotes around it, in lower case."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def includes(phrase: str, text: str, *, alone: bool = False) -> bool:
    """Whether `text` holds `phrase`. A phrase of one letter or digit that is `alone` must stand as a word of its own: 0 is not in 10."""
    wanted, given = clean(phrase), clean(text)
    return wanted in _TOKEN.findall(given) if alone and len(wanted) == 1 else wanted in given


async def _program_html(check: Check, last_url: str, window: Window, addresses: Addresses) -> bool:
    queries = Queries(window, addresses)
    url = check.url
    if url.startswith("func"):
        url = await queries.run(url.partition("func:")[2].replace("__last_url__", last_url))
    if url != "last":
        await _open(url, window, addresses)
    text = html.unescape(await _locate(check, window, queries))
    if check.exact is not None:
        return clean(text) == clean(check.exact)
    return all(any(includes(one, text) for one in phrase.split(OR)) for phrase in check.included)


async def _open(url: str, window: Window, addresses: Addresses) -> None:
    await window.show(url)
    if not addresses.embedded:
        # Pages of other people's sites go on building themselves after they have loaded.
        with contextlib.suppress(Error):
            await window.page.wait_for_load_state("networkidle", timeout=QUIET_S * 1000)


async def _locate(check: Check, window: Window, queries: Queries) -> str:
    """The text that a check is about; "" where the page lacks the place."""
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
