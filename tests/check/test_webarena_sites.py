"""Tests of WebArena's embedded sites over HTTP, without a browser."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Coroutine, Iterable
from html import unescape
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.webarena.sites import (
    content_data,
    database,
    forum_data,
    repositories_data,
    shop_data,
)
from environments.webarena.sites.gate import EPISODE_COOKIE, HOSTS, Episode, Gate
from environments.webarena.sites.pages import LOGIN_COOKIE

T = TypeVar("T")
GATE = Gate()
USERS = {
    "shop.test": shop_data.CUSTOMER,
    "forum.test": forum_data.MEMBER,
    "repos.test": repositories_data.USER,
    "content.test": content_data.EDITOR,
}
HOMES = {
    "shop.test": "/",
    "forum.test": "/",
    "repos.test": "/",
    "content.test": "/admin",
    "home.test": "/",
}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def client(episode: Episode, host: str, *, signed_in: bool = True) -> httpx.AsyncClient:
    cookies = {EPISODE_COOKIE: episode.token} | (
        {LOGIN_COOKIE: USERS[host]} if signed_in and host in USERS else {}
    )
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(GATE),
        base_url=f"http://{host}",
        cookies=cookies,
        follow_redirects=True,
    )


def links(page: httpx.Response) -> Iterable[str]:
    return {
        urljoin(str(page.url), unescape(found))
        for found in re.findall(r'href="([^"]+)"', page.text)
    }


@pytest.mark.parametrize("host", HOSTS)
def test_every_link_of_a_site_works(host: str) -> None:
    async def crawl() -> int:
        episode = GATE.open(HOSTS)
        waiting, seen = [f"http://{host}{HOMES[host]}"], set()
        async with client(episode, host) as web:
            while waiting and len(seen) < 400:
                url = waiting.pop(0)
                page = await web.get(url)
                assert page.status_code == 200, url
                assert page.headers["cache-control"] == "no-store"
                for link in links(page):
                    if (
                        urlsplit(link).hostname == host
                        and link not in seen
                        and link not in waiting
                        and len(waiting) < 60
                    ):
                        waiting.append(link)
                seen.add(url)
        GATE.close(episode)
        return len(seen)

    assert run(crawl()) >= (2 if host == "home.test" else 60)


def test_the_pages_are_the_same_in_every_episode_and_process() -> None:
    async def pages() -> list[str]:
        episode = GATE.open(HOSTS)
        found = []
        for host, home in HOMES.items():
            async with client(episode, host) as web:
                found.append((await web.get(home)).text)
        GATE.close(episode)
        return found

    assert run(pages()) == run(pages())


def test_changes_of_one_episode_are_invisible_to_others() -> None:
    async def play() -> None:
        mine, other = GATE.open(HOSTS), GATE.open(HOSTS)
        async with client(mine, "forum.test") as web, client(other, "forum.test") as neighbour:
            before = (await neighbour.get("/f/baking")).text
            written = await web.post("/submit/baking", data={"title": "Only here", "body": "text"})
            assert "Only here" in written.text
            assert "Only here" in (await web.get("/f/baking")).text
            assert (await neighbour.get("/f/baking")).text == before
        GATE.close(mine)
        GATE.close(other)
        later = GATE.open(HOSTS)
        async with client(later, "forum.test") as web:
            assert (await web.get("/f/baking")).text == before
        GATE.close(later)

    run(play())


@pytest.mark.parametrize(
    ("host", "cookies"),
    [
        ("shop.test", {}),
        ("shop.test", {EPISODE_COOKIE: "guess"}),
        ("evil.test", None),
        ("forum.test", None),
        ("169.254.1.1", None),
        ("", None),
    ],
)
def test_requests_without_an_episode_or_for_another_host_are_refused(
    host: str, cookies: dict[str, str] | None
) -> None:
    async def ask() -> httpx.Response:
        episode = GATE.open(["shop.test"])
        sent = {EPISODE_COOKIE: episode.token} if cookies is None else cookies
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(GATE), base_url="http://shop.test", cookies=sent
        ) as web:
            return await web.get("/", headers={"host": host})

    answer = run(ask())
    assert answer.status_code == 403
    assert "not part of the task" in answer.text


def test_sign_in_requires_the_right_password_and_sign_out_ends_it() -> None:
    async def play() -> None:
        episode = GATE.open(HOSTS)
        async with client(episode, "content.test", signed_in=False) as web:
            assert "Sign in" in (await web.get("/admin/settings")).text
            wrong = await web.post(
                "/login", data={"username": content_data.EDITOR, "password": "x' OR '1'='1"}
            )
            assert "wrong" in wrong.text
            right = await web.post(
                "/login", data={"username": content_data.EDITOR, "password": content_data.PASSWORD}
            )
            assert "Dashboard" in right.text
            await web.post("/logout")
            assert "Sign in" in (await web.get("/admin/settings")).text
        GATE.close(episode)

    run(play())


_FORMS = [
    ("shop.test", "/product/{}/review", ("rating", "title", "body")),
    ("shop.test", "/product/{}/cart", ("quantity", "change")),
    ("shop.test", "/cart/buy", ("street", "city", "postcode")),
    ("shop.test", "/account", ("street", "city", "postcode", "phone")),
    ("forum.test", "/submit/{}", ("title", "body")),
    ("forum.test", "/create_forum", ("name", "description")),
    ("repos.test", "/projects/new", ("name", "description", "visibility")),
    ("repos.test", "/rowan/ledger/-/project_members", ("username", "role")),
    ("content.test", "/admin/articles/new", ("title", "section", "status", "body")),
    ("content.test", "/admin/staff", ("username", "name", "role")),
]


@settings(max_examples=30)
@given(
    st.sampled_from(_FORMS),
    st.text(max_size=20),
    st.lists(st.text(max_size=30), min_size=4, max_size=4),
)
def test_any_form_is_answered_with_a_page(
    form: tuple[str, str, tuple[str, ...]], place: str, values: list[str]
) -> None:
    host, path, names = form

    async def post() -> httpx.Response:
        episode = GATE.open(HOSTS)
        async with client(episode, host) as web:
            clean = [value.encode("utf-8", "replace").decode() for value in values]
            part = quote(place.encode("utf-8", "replace"), safe="") or "x"
            answer = await web.post(path.format(part), data=dict(zip(names, clean, strict=False)))
        assert episode.fault is None
        GATE.close(episode)
        return answer

    assert run(post()).status_code in (200, 404)


@pytest.mark.parametrize("digits", [15, 16, 20, 5_000])
def test_a_number_of_any_length_in_an_address_is_a_missing_page(digits: int) -> None:
    number = "9" * digits
    paths = {
        "shop.test": ["/sales/order/view/order_id/{}/", "/sales/order/cancel/order_id/{}/"],
        "forum.test": ["/f/baking/{}/", "/f/baking/{}/x", "/edit/{}", "/comment/{}", "/vote/{}"],
        "repos.test": ["/rowan/ledger/-/issues/{}"],
        "content.test": ["/admin/articles/{}/edit", "/admin/comments/{}"],
    }

    async def visit() -> None:
        episode = GATE.open(HOSTS)
        for host, some in paths.items():
            async with client(episode, host) as web:
                for path in some:
                    address = path.format(number)
                    assert (await web.get(address)).status_code in (404, 405), address
                    answer = await web.post(address, data={"body": "x", "title": "x"})
                    assert digits == 15 or answer.status_code == 404, address
        assert episode.fault is None
        GATE.close(episode)

    run(visit())


def test_user_texts_are_escaped() -> None:
    async def play() -> str:
        episode = GATE.open(HOSTS)
        async with client(episode, "forum.test") as web:
            page = await web.post(
                "/submit/baking", data={"title": "<script>alert(1)</script>", "body": "{{ 7 * 7 }}"}
            )
        GATE.close(episode)
        return page.text

    text = run(play())
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_an_exception_of_a_site_is_recorded_in_the_episode() -> None:
    async def play() -> Exception | None:
        episode = GATE.open(HOSTS)
        episode.db.execute("DROP TABLE products")
        async with client(episode, "shop.test") as web:
            assert (await web.get("/")).status_code == 500
        GATE.close(episode)
        return episode.fault

    assert "products" in str(run(play()))


def test_the_initial_state_is_read_only() -> None:
    with pytest.raises(sqlite3.OperationalError) as refused:
        database.known_state().execute("DELETE FROM products")
    assert refused.value.sqlite_errorcode == sqlite3.SQLITE_READONLY
