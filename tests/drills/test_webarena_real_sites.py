"""Tests of WebArena on other sites: task files, logins, hanging pages and sites that are down."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from environments.environment import EpisodeOverError
from environments.webarena.browser import (
    BrowserLostError,
    Browsers,
    PageHungError,
    SiteUnreachableError,
)
from environments.webarena.sign_in import LoginMissingError
from environments.webarena.world import WebArena, WebArenaEnvironment
from tests.support.chromium import needs_chromium, number, play

pytestmark = needs_chromium

SHOP = """<title>Store</title><h1>Hello {user}</h1>
<a href="/hang">hang</a> <a href="/never">never</a> <a href="/away">away</a> <a href="http://outside.example/x">outside</a>
<a href="/child" target="_blank">window</a> <a href="/broken">broken</a>
<a href="/broken" target="_blank">broken window</a> <a href="/gone" target="_blank">lost window</a>
<a href="/slow">slow</a> <a href="/download">file</a>
<form action="/chosen"><button>Go</button>
<label>Kind <select name="kind"><option>red</option><option value="g">green</option></select></label></form>
<label>Note <input name="note"></label><p class="price">$5</p>"""

SHARED = {"Access-Control-Allow-Origin": "*"}
"""Lets pages of other hosts read an answer."""


class Store:
    """A small store with Magento's REST interface, on a port of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.released = asyncio.Event()
        self.is_down = False
        self.orders = [{"increment_id": "000000042"}]
        self.asked = ""
        """Address that the page /map asks."""
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, shutdown_timeout=1).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self) -> None:
        async def end() -> None:
            self.released.set()
            await self._runner.cleanup()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if self.is_down or path in ("/broken", "/f/baking/9/"):
            return web.Response(
                status=500, text="<h1>Broken</h1>", content_type="text/html", headers=SHARED
            )
        if path == "/gone":
            assert request.transport is not None
            request.transport.close()
        if path == "/missing":
            return web.Response(
                status=404, text="<h1>Missing</h1>", content_type="text/html", headers=SHARED
            )
        if path == "/never":
            await self.released.wait()
        if path == "/away":
            raise web.HTTPFound("http://outside.example/")
        if path == "/away-tls":
            raise web.HTTPFound("https://outside.example/")
        if path == "/download":
            return web.Response(
                body=b"x", headers={"Content-Disposition": "attachment; filename=x"}
            )
        if path == "/slow":
            await asyncio.sleep(0.5)
        if path == "/rest/default/V1/integration/admin/token":
            assert (await request.json())["username"] == "admin"
            return web.json_response("t0ken")
        if path.startswith("/rest/V1/") and path != "/rest/V1/":
            if request.headers.get("Authorization") != "Bearer t0ken":
                return web.json_response({}, status=401)
            reviews = [
                {"nickname": name, "ratings": [{"percent": 60}]} for name in ("first", "last")
            ]
            return web.json_response(
                reviews if path.endswith("reviews") else {"items": self.orders}
            )
        texts = {
            "/": SHOP.replace("{user}", request.cookies.get("who", "stranger")),
            "/hang": "<title>Hang</title><script>while (true) {}</script>",
            "/slow": "<title>Slow</title><h1>Slow at last</h1>",
            "/long": "<title>Long</title><style>p{margin:0;font-size:4px;line-height:5px}</style>"
            + "".join(f"<p>line {n} of the list" for n in range(120))
            + "<div style='height:900px'></div><p>the end",
            "/map": f"<title>Map</title><h1>Map</h1><script>fetch('{self.asked}')"
            ".then(answer => answer.text()).then(text => { document.body.innerHTML += text })"
            "</script>",
            "/child": "<title>Child</title><h1>Child</h1>",
            "/chosen": f"<title>Chosen</title><h1>You chose {request.query.get('kind')}</h1>",
        }
        return web.Response(
            text=texts.get(path, f"<title>Other</title><p id=path>{path}</p>"),
            content_type="text/html",
            headers=SHARED,
        )


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browsers() -> Iterator[Browsers]:
    made = Browsers()
    yield made
    made.stop()


Begin = Callable[..., tuple[WebArenaEnvironment, str]]


@pytest.fixture
def begin(store: Store, browsers: Browsers, tmp_path: Path) -> Iterator[Begin]:
    """Return a function that writes a task file and begins its task."""
    sessions: list[WebArenaEnvironment] = []

    def start(
        evaluation: dict[str, Any] | None = None,
        *,
        step_s: float = 60,
        site: str | None = None,
        page_characters: int = 8_000,
        services: str = "",
        **changes: Any,
    ) -> tuple[WebArenaEnvironment, str]:
        entry = {
            "sites": ["shopping"], "task_id": 7, "storage_state": None, "start_url": "__SHOPPING__", "intent": "Do it",
            "eval": evaluation or {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/chosen?kind=g"},
        }  # fmt: skip
        (tmp_path / "config_files").mkdir(exist_ok=True)
        (tmp_path / "config_files" / "7.json").write_text(json.dumps(entry | changes))
        settings = {"WEBARENA_TASKS": str(tmp_path / "config_files"), "SHOPPING": site or store.url}
        settings["WEBARENA_PAGE_CHARACTERS"] = str(page_characters)
        settings["WEBARENA_SERVICES"] = services
        world = WebArena(settings, step_s=step_s)
        world._shared.browsers = browsers
        sessions.append(world.create())
        return sessions[-1], sessions[-1].reset(7)

    yield start
    for session in sessions:
        session.close()


def test_a_long_page_is_split_and_scrolling_shows_every_part(begin: Begin) -> None:
    session, unsplit = begin(start_url="__SHOPPING__/long")
    assert "page cut" not in unsplit
    session, first = begin(start_url="__SHOPPING__/long", page_characters=1_500)
    assert len(first) < 1_900
    seen, last = [first], ""
    while seen[-1] != last:
        last = seen[-1]
        seen.append(session.step("scroll [down]").observation)
    assert re.search(
        r"\n\[page cut: \d+ more lines below; scroll \[down\] shows them\]\nURL: ", first
    )
    assert "\n[page cut: " in seen[1].split("line")[0]
    shown = set(re.findall(r"'line (\d+) of the list'", "".join(seen)))
    assert shown == {str(number) for number in range(120)}
    assert "StaticText 'the end'" in seen[-1]
    hovered = session.step(
        f"hover [{number(seen[1], 'StaticText')}]"
    )  # numbers from earlier parts stay usable
    assert not hovered.done
    while "'line 0 of" not in seen[-1]:
        seen.append(session.step("scroll [up]").observation)
    assert seen[-1].partition("URL")[0] == first.partition("URL")[0]
    assert session.step("stop").done


def html(url: str, locator: str, **required: Any) -> dict[str, Any]:
    return {
        "eval_types": ["program_html"],
        "program_html": [{"url": url, "locator": locator, "required_contents": required}],
    }


def test_a_task_file_is_played_under_the_published_addresses(begin: Begin) -> None:
    session, seen = begin()
    assert "heading 'Hello stranger'" in seen
    assert "URL: http://onestopmarket.com/\nOBJECTIVE: Do it" in seen
    seen = session.step("goto [http://onestopmarket.com/chosen?kind=g]").observation
    assert "PREVIOUS ACTION: goto [http://onestopmarket.com/chosen?kind=g]" in seen
    assert "heading 'You chose g'" in seen
    assert session.step("stop").reward == 1.0


def test_published_addresses_become_real_ones_in_typed_texts_and_answers(
    begin: Begin, store: Store
) -> None:
    note = "document.querySelector('[name=note]').value"
    evaluation = html("last", note, exact_match="__SHOPPING__/a") | {
        "eval_types": ["string_match", "program_html"],
        "reference_answers": {"exact_match": f"{store.url}/b"},
    }
    session, seen = begin(evaluation)
    action = f"type [{number(seen, 'textbox')}] [http://onestopmarket.com/a] [0]"
    assert "[http://onestopmarket.com/a]" in session.step(action).observation
    assert session.step("stop [http://onestopmarket.com/b]").reward == 1.0


def test_an_option_is_chosen_by_clicking_or_typing(begin: Begin) -> None:
    session, seen = begin()
    assert "option 'green' selected: False" in seen
    seen = play(session, "click [<combobox 'Kind'>]", "click [<option 'green'>]")
    assert "option 'green' selected: True" in seen
    assert (
        "has no option 'blue'"
        in session.step(f"type [{number(seen, 'combobox')}] [blue]").observation
    )
    assert "You chose g" in play(
        session,
        "type [<combobox 'Kind'>] [red]",
        "type [<combobox 'Kind'>] [Green]",
        "click [<button 'Go'>]",
    )


@pytest.mark.parametrize("action", ["click [{}]", "type [{}] [red]"])
def test_an_element_that_is_gone_cannot_be_used(begin: Begin, action: str) -> None:
    session, seen = begin()
    window = session._window
    assert window is not None
    session._shared.browsers.call(window.page.reload, 60)
    step = session.step(action.format(number(seen, "combobox")))
    assert (step.refused, step.done) == (True, False)
    assert "option 'green' selected: True" in play(session, "type [<combobox 'Kind'>] [green]")


def test_a_page_that_is_gone_is_a_fault(begin: Begin) -> None:
    session, seen = begin()
    window = session._window
    assert window is not None
    session._shared.browsers.call(window.page.close, 60)
    with pytest.raises(BrowserLostError):
        session.step(f"type [{number(seen, 'combobox')}] [red]")


def test_slow_page_is_awaited(begin: Begin) -> None:
    session, _ = begin()
    assert "Slow at last" in play(session, "click [<link 'slow'>]")


def test_window_that_a_page_opens_becomes_the_current_tab(begin: Begin) -> None:
    session, _ = begin()
    assert "Tab 0: Store | Tab 1 (current): Child\n" in play(session, "click [<link 'window'>]")
    assert "Tab 0 (current): Store\n" in play(session, "close_tab")


def test_the_task_may_begin_with_several_tabs(begin: Begin) -> None:
    _, seen = begin(start_url="__SHOPPING__ |AND| __SHOPPING__/child")
    assert "Tab 0 (current): Store | Tab 1: Child\n" in seen


def test_login_cookies_come_from_the_file_that_the_task_names(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(LoginMissingError, match=r"shopping_state\.json.*WEBARENA_LOGINS"):
        begin(storage_state="./.auth/shopping_state.json")
    (tmp_path / ".auth").mkdir()
    cookie = {
        "name": "who",
        "value": "Emma",
        "domain": "127.0.0.1",
        "path": "/",
        "expires": -1,
        "httpOnly": True,
        "secure": False,
        "sameSite": "Lax",
    }
    (tmp_path / ".auth" / "shopping_state.json").write_text(
        json.dumps({"cookies": [cookie], "origins": []})
    )
    _, seen = begin(storage_state="./.auth/shopping_state.json")
    assert "heading 'Hello Emma'" in seen


@pytest.mark.parametrize("link", ["away", "outside"])
def test_links_and_redirects_to_other_sites_are_refused(begin: Begin, link: str) -> None:
    session, _ = begin()
    assert "This address is not part of the task's sites" in play(
        session, f"click [<link '{link}'>]"
    )


def test_a_click_on_a_download_changes_nothing(begin: Begin) -> None:
    session, before = begin()
    after = play(session, "click [<link 'file'>]")
    assert re.sub(" focused: True", "", after.partition("URL")[0]) == re.sub(
        " focused: True", "", before.partition("URL")[0]
    )


@pytest.mark.parametrize(
    ("path", "opens"), [("away", True), ("away-tls", True), ("download", False), ("hidden", True)]
)
def test_goto_is_refused_if_and_only_if_the_tab_stays(begin: Begin, path: str, opens: bool) -> None:
    session, before = begin()
    step = session.step(f"goto [http://onestopmarket.com/{path}]")
    assert step.refused is not opens
    after = session.step("scroll [up]").observation
    assert (after.partition("PREVIOUS")[0] != before.partition("PREVIOUS")[0]) is opens


@pytest.mark.parametrize("link", ["hang", "never"])
def test_a_hanging_page_is_stopped_at_the_deadline(begin: Begin, link: str) -> None:
    session, seen = begin(step_s=5)
    with pytest.raises(PageHungError):
        session.step("click [" + str(number(seen, f"link '{link}'")) + "]")
    with pytest.raises(EpisodeOverError):
        session.step("scroll [down]")
    assert "Hello stranger" in session.reset(7)


def test_a_site_that_is_down_is_a_fault(begin: Begin) -> None:
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as site:  # accepts a connection at set-up, and is down when the task is played
        threading.Thread(target=lambda: site.accept()[0].close() or site.close()).start()
        with pytest.raises(SiteUnreachableError):
            begin(site=f"http://127.0.0.1:{site.getsockname()[1]}")


@pytest.mark.parametrize("link", ["broken", "broken window", "lost window"])
def test_a_page_with_a_server_error_is_a_fault(begin: Begin, link: str) -> None:
    session, _ = begin()
    with pytest.raises(SiteUnreachableError):
        play(session, f"click [<link '{link}'>]")
    with pytest.raises(EpisodeOverError):
        session.step("stop")


@pytest.mark.parametrize("action", ["goto [http://onestopmarket.com/map]", "stop"])
@pytest.mark.parametrize(
    ("path", "is_fault"), [("broken", True), ("gone", True), ("never", True), ("missing", False)]
)
def test_a_service_that_does_not_answer_a_page_is_a_fault(
    begin: Begin,
    store: Store,
    path: str,
    is_fault: bool,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("environments.webarena.window.SERVICE_S", 1.0)
    routes = Store()
    store.asked = f"{routes.url}/{path}"
    try:
        session, _ = begin(
            html("__SHOPPING__/map", "", must_include=["Map"]),
            services=routes.url.removeprefix("http://"),
        )
        with pytest.raises(SiteUnreachableError) if is_fault else nullcontext():
            session.step(action)
    finally:
        routes.stop()


def test_an_observation_has_what_a_page_asked_a_service_for(begin: Begin, store: Store) -> None:
    routes = Store()
    store.asked = f"{routes.url}/slow"
    try:
        session, _ = begin(services=routes.url.removeprefix("http://"))
        seen = session.step("goto [http://onestopmarket.com/map]").observation
        assert "Slow at last" in seen
    finally:
        routes.stop()


@pytest.mark.parametrize("path", ["missing", "broken", "f/baking/9/x", "f/baking/it's"])
def test_broken_address_that_the_agent_made_up_is_scored_and_not_a_fault(
    begin: Begin, path: str
) -> None:
    post = html("func:reddit_get_post_url('__last_url__')", "", must_include=["Hello"])
    session, _ = begin(post)
    step = session.step(f"goto [http://onestopmarket.com/{path}]")
    assert not step.refused
    assert f"http://onestopmarket.com/{path}" in step.observation
    for action in ("goto [onestopmarket.com]", "go_back"):
        step = session.step(action)
    assert f"http://onestopmarket.com/{path}" in step.observation
    assert session.step("stop").reward == 0.0


def test_a_broken_page_of_a_check_is_a_fault_even_if_the_agent_wrote_its_address(
    begin: Begin,
) -> None:
    session, _ = begin(html("__SHOPPING__/broken", "", must_include=["Hello"]))
    session.step("goto [http://onestopmarket.com/broken]")
    with pytest.raises(SiteUnreachableError):
        session.step("stop")


def test_a_site_that_fails_for_every_address_is_a_fault(begin: Begin, store: Store) -> None:
    session, _ = begin()
    store.is_down = True
    try:
        with pytest.raises(SiteUnreachableError):
            session.step("goto [http://onestopmarket.com/child]")
    finally:
        store.is_down = False


@pytest.mark.parametrize("page", ["__SHOPPING__/broken", "__SHOPPING__/gone", "last"])
def test_a_site_that_fails_while_an_episode_is_judged_gives_no_score(
    begin: Begin, store: Store, page: str
) -> None:
    session, _ = begin(html(page, "", must_include=["Hello"]))
    if page == "last":
        window = session._window
        assert window is not None
        store.is_down = True
        session._shared.browsers.call(window.page.reload, 60)
        store.is_down = False
    with pytest.raises(SiteUnreachableError):
        session.step("stop")


@pytest.mark.parametrize(
    ("evaluation", "right"),
    [
        (html("last", "", must_include=["Hello stranger |OR| Hello you", "$5"]), True),
        (html("last", "document.querySelector('.price').outerText", exact_match="$5"), True),
        (html("last", "document.querySelector('.price').outerText", exact_match="$6"), False),
        (html("last", "document.querySelector('.missing').outerText", must_include=["$5"]), False),
        (
            html(
                "__SHOPPING__/child", "document.querySelector('h1').outerText", exact_match="child"
            ),
            True,
        ),
        (
            html(
                "last",
                "[...document.querySelectorAll('option')].map(o => o.value).join(' ')",
                exact_match="red g",
            ),
            True,
        ),
        (
            html(
                "func:shopping_get_latest_order_url()",
                "document.querySelector('#path').outerText",
                must_include=["order_id/42"],
            ),
            True,
        ),
        (
            html("last", "func:shopping_get_sku_latest_review_author('B1')", exact_match="last"),
            True,
        ),
        (html("last", "func:shopping_get_sku_latest_review_rating('B1')", exact_match="60"), True),
        (html("last", "func:get_query_text(__page__, '.price')", must_include=["5"]), True),
        (
            {
                "eval_types": ["string_match", "url_match"],
                "reference_answers": {"exact_match": "5"},
                "reference_url": "__SHOPPING__",
            },
            True,
        ),
    ],
)
def test_episodes_are_judged_by_their_task_file(
    begin: Begin, evaluation: dict[str, Any], right: bool
) -> None:
    session, _ = begin(evaluation)
    step = session.step("stop [5]")
    assert (step.reward, step.done) == (float(right), True)


def test_a_shop_without_orders_has_no_latest_order(begin: Begin, store: Store) -> None:
    session, _ = begin(html("func:shopping_get_latest_order_url()", "", must_include=["x"]))
    orders, store.orders = store.orders, []
    try:
        assert session.step("stop").reward == 0.0
    finally:
        store.orders = orders


def test_preparing_actions_run_before_the_locator_is_evaluated(begin: Begin) -> None:
    evaluation = html("last", "document.title", exact_match="prepared")
    evaluation["program_html"][0]["prep_actions"] = ["document.title = 'prepared'"]
    session, _ = begin(evaluation)
    assert session.step("stop").reward == 1.0
