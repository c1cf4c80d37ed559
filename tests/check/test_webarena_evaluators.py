"""Tests of WebArena's evaluators without a browser, and of the judge behind an HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from aiohttp import web

from environments.webarena import judge as judging
from environments.webarena.addresses import Addresses
from environments.webarena.evaluators import clean, includes, string_match, url_match
from environments.webarena.judge import Judge, JudgeError
from environments.webarena.site_queries import Queries
from environments.webarena.task_files import TaskFile
from environments.webarena.window import Window

TASK = TaskFile(
    0,
    "How many?",
    0,
    ("shopping",),
    ("http://shop.test",),
    None,
    None,
    ("string_match",),
    (),
    "sold out",
    "",
    (),
)


def matches(answer: str, *, judge: Judge | None = None, **references: Any) -> bool:
    return asyncio.run(
        string_match(replace(TASK, answers=tuple(references.items())), answer, judge)
    )


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("Ada Yates", "Ada Yates", True),
        (" 'ada yates' ", "Ada Yates", True),
        ('"Ada Yates"', "Ada Yates", True),
        ("Ada Yates.", "Ada Yates", False),
        ("", "Ada Yates", False),
    ],
)
def test_exact_match_ignores_case_space_and_quotes(
    answer: str, reference: str, right: bool
) -> None:
    assert matches(answer, exact_match=reference) == right


@pytest.mark.parametrize(
    ("answer", "phrases", "right"),
    [
        ("It costs $41.00 today", ["41.00"], True),
        ("a lamp and a DESK", ["Lamp", "desk"], True),
        ("a lamp", ["lamp", "desk"], False),
        ("10", ["1"], False),  # a single letter or digit must stand alone
        ("1 of 10", ["1"], True),
        ("There are 3.", ["3"], True),
        ("$3.50", ["3"], False),
        ("10", ["1", "0"], True),  # as published, the rule is for a single phrase
    ],
)
def test_every_phrase_must_be_included(answer: str, phrases: list[str], right: bool) -> None:
    assert matches(answer, must_include=phrases) == right


def test_cleaning_removes_only_one_pair_of_quotes() -> None:
    assert clean("''A''") == "'a'"
    assert clean("'") == "'"
    assert includes("A", "b a c")


@pytest.mark.parametrize(
    ("url", "reference", "right"),
    [
        ("http://shop.test/cart", "http://shop.test/cart", True),
        ("http://shop.test/cart/", "http://shop.test/cart", True),
        ("http://shop.test/cart?x=1", "http://shop.test/cart", True),
        ("http://shop.test/", "http://shop.test/cart", False),
        ("http://shop.test/c?sort=price&page=2", "http://shop.test/c?sort=price", True),
        ("http://shop.test/c?sort=name", "http://shop.test/c?sort=price", False),
        ("http://shop.test/c", "http://shop.test/c?sort=price", False),
        ("http://shop.test/b", "http://shop.test/a |OR| http://shop.test/b", True),
        ("http://shop.test/b?k=2", "http://shop.test/a?k=1 |OR| http://shop.test/b?k=2", True),
        ("http://shop.test/b?k=3", "http://shop.test/a?k=1 |OR| http://shop.test/b?k=2", False),
        ("http://evil.test/http://shop.test/cart", "http://other.test/cart", False),
    ],
)
def test_page_matches_by_address_and_query_fields(url: str, reference: str, right: bool) -> None:
    assert url_match(reference, url) == right


@pytest.mark.parametrize(
    ("path", "post"),
    [
        ("f/baking/3/x", "f/baking/3/"),
        ("f/baking/3/it's", "f/baking/3/"),
        ("f/baking/3?sort=a/b", "f/baking/3/"),
        ("f/baking?sort=a/b/c", "f/baking?sort=a/b/c"),
        ("user/x/y/z", "user/x/y/z"),
    ],
)
def test_the_post_of_the_last_page_is_found_by_its_path(path: str, post: str) -> None:
    queries = Queries(cast(Window, None), Addresses({}), f"http://forum.test/{path}")
    found = asyncio.run(queries.run("reddit_get_post_url('__last_url__')"))
    assert found == f"http://forum.test/{post}"


@pytest.mark.parametrize(
    ("url", "reference", "right"),
    [
        ("http://a.test/issues/1", "http://a.test/issues/1", True),
        ("http://a.test/issues/1/?x=1", "http://a.test/issues/1/", True),
        ("http://a.test/issues/1/title", "issues/1/", True),
        ("http://a.test/issues/10", "http://a.test/issues/1", False),
        ("http://a.test/issues/10", "http://a.test/issues/1/", False),
    ],
)
def test_an_embedded_page_matches_by_whole_parts_of_its_path(
    url: str, reference: str, right: bool
) -> None:
    assert url_match(reference, url, whole_parts=True) == right
    assert url_match(reference, url)


Reply = Callable[[str], str | int]


async def _with_judge(
    reply: Reply, use: Callable[[Judge, list[dict[str, Any]]], Awaitable[Any]]
) -> Any:
    requests: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.Response:
        requests.append(await request.json())
        assert request.headers["Authorization"] == "Bearer k"
        answer = reply(requests[-1]["messages"][-1]["content"])
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.json_response({"choices": [{"message": {"content": answer}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        return await use(Judge(f"http://127.0.0.1:{port}/v1", "some-model", "k"), requests)
    finally:
        await runner.cleanup()


def judged(reply: Reply, answer: str, **references: Any) -> tuple[bool, list[dict[str, Any]]]:
    async def use(
        judge: Judge, requests: list[dict[str, Any]]
    ) -> tuple[bool, list[dict[str, Any]]]:
        return await string_match(
            replace(TASK, answers=tuple(references.items())), answer, judge
        ), requests

    result: tuple[bool, list[dict[str, Any]]] = asyncio.run(_with_judge(reply, use))
    return result


@pytest.mark.parametrize(
    ("verdict", "right"), [("CORRECT", True), ("Incorrect.", False), ("partial", False)]
)
def test_judge_compares_answers_whose_wording_may_differ(verdict: str, right: bool) -> None:
    matched, requests = judged(lambda text: verdict, "about ten minutes", fuzzy_match=["10 min"])
    assert matched == right
    [request] = requests
    assert (request["model"], request["temperature"]) == ("some-model", 0)
    for part in ("How many?", "10 min", "about ten minutes"):
        assert part in request["messages"][0]["content"]


def test_every_reference_must_match() -> None:
    matched, requests = judged(
        lambda text: "INCORRECT" if "second" in text else "CORRECT",
        "x",
        fuzzy_match=["first", "second", "third"],
    )
    assert not matched
    assert len(requests) == 2


def test_an_impossible_task_accepts_na_or_the_true_reason() -> None:
    assert matches("N/A", fuzzy_match="N/A")
    assert not matches("it is 7", fuzzy_match="N/A")
    assert judged(
        lambda text: "SAME" if "sold out" in text else "DIFFERENT",
        "none is left",
        fuzzy_match="N/A",
    )[0]
    assert not judged(lambda text: "DIFFERENT", "I did not want to", fuzzy_match="N/A")[0]


def test_empty_answer_is_wrong_without_asking_the_judge() -> None:
    assert judged(lambda text: "CORRECT", "", fuzzy_match=["something"]) == (False, [])


@pytest.mark.parametrize("reply", ["I cannot say.", 500])
def test_missing_verdict_is_an_error(reply: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "ATTEMPTS", 2)
    with pytest.raises(JudgeError):
        judged(lambda text: reply, "x", fuzzy_match=["y"])


def test_a_failed_request_to_the_judge_is_retried() -> None:
    replies = iter([503, "CORRECT"])
    assert judged(lambda text: next(replies), "x", fuzzy_match=["y"])[0]
