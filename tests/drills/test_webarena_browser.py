"""Tests of WebArena in a real browser: actions, separate sessions, and faults."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.environment import EpisodeOverError, OracleError
from environments.webarena.browser import (
    EXECUTABLES,
    BrowserError,
    BrowserLostError,
    Browsers,
    ChromiumMissingError,
)
from environments.webarena.tasks import embedded_entries, embedded_tasks
from environments.webarena.window import MAX_TABS
from environments.webarena.world import WebArena, WebArenaEnvironment
from tests.support.chromium import chromium_processes, needs_chromium, play
from tests.support.processes import command_line, kill

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def world() -> Iterator[WebArena]:
    made = WebArena({})
    yield made
    made.close()


@pytest.fixture
def session(world: WebArena) -> Iterator[WebArenaEnvironment]:
    made = world.create()
    yield made
    made.close()


def task_about(text: str) -> int:
    return next(index for index, task in embedded_tasks().items() if text in task.intent)


def solve(
    session: WebArenaEnvironment, index: int, first: Sequence[str] = ()
) -> tuple[float, list[str]]:
    seen = [session.reset(index), *(play(session, action) for action in first)]
    for _ in range(30):
        step = session.step(session.oracle_action())
        seen.append(step.observation)
        if step.done:
            return step.reward, seen
    raise AssertionError("the oracle does not stop")


# -- episodes


@pytest.mark.parametrize(
    "intent",
    [
        "What does the",
        "Show me all",
        "Review the",
        "Buy one",
        "Write a submission",
        "Invite ",
        "Publish the draft",
        "Sign in as",
    ],
)
def test_oracle_earns_the_full_reward(session: WebArenaEnvironment, intent: str) -> None:
    reward, _ = solve(session, task_about(intent))
    assert reward == 1.0
    with pytest.raises(EpisodeOverError):
        session.step("stop")
    with pytest.raises(OracleError):
        session.oracle_action()


def test_open_tabs_do_not_disturb_the_judge(session: WebArenaEnvironment) -> None:
    tabs = ["new_tab"] * (MAX_TABS - 1)
    reward, _ = solve(session, task_about("Buy one"), [*tabs, "tab_focus [0]"])
    assert reward == 1.0


@pytest.mark.parametrize("answer", ["", "N/A", "$1.00"])
@pytest.mark.parametrize(
    "intent", ["What does the", "Show me all", "Buy one", "Write a submission"]
)
def test_stopping_early_earns_nothing(
    session: WebArenaEnvironment, intent: str, answer: str
) -> None:
    session.reset(task_about(intent))
    step = session.step(f"stop [{answer}]")
    assert (step.reward, step.done) == (0.0, True)


SEND = """async ([path, fields]) =>
    (await fetch(path, {method: 'POST', body: new URLSearchParams(fields)})).status"""
ADDRESS = {"street": "1{street}", "city": "{city}", "postcode": "{postcode}", "phone": "1"}
ISSUE = {"title": "{title}", "label": "{other}", "body": "bug feature question documentation"}
STAFF = {"username": "{account}", "name": "{name}", "role": "{other}"}


@pytest.mark.parametrize(
    ("intent", "path", "fields"),
    [
        ("Put {{quantity}}", "/product/{slug}/cart", {"quantity": "1{quantity}"}),
        ("Buy one", "/product/{slug}/cart", {"quantity": "11"}),
        ("I have moved", "/account", ADDRESS),
        ("Create an issue", "/{project}/-/issues/new", ISSUE),
        ("Add {{name}} to the staff", "/admin/staff", STAFF),
    ],
)
def test_a_similar_end_state_earns_nothing(
    session: WebArenaEnvironment, intent: str, path: str, fields: dict[str, str]
) -> None:
    entry = next(one for one in embedded_entries() if one["intent_template"].startswith(intent))
    values = entry["instantiation_dict"]
    values = values | {
        "slug": values.get("product", "").lower().replace(" ", "-"),
        "other": next(
            one
            for one in (("bug", "feature") if "label" in values else ("Author", "Editor"))
            if one not in values.values()
        ),
    }
    session.reset(entry["task_id"])
    window = session._window
    assert window is not None

    async def send(path: str, fields: dict[str, str]) -> None:
        sent = {name: text.format(**values) for name, text in fields.items()}
        assert await window.page.evaluate(SEND, [path.format(**values), sent]) == 200

    session._shared.browsers.call(lambda: send(path, fields), 60)
    if intent == "Buy one":
        address = dict.fromkeys(("street", "city", "postcode"), "x")
        session._shared.browsers.call(lambda: send("/cart/buy", address), 60)
    assert session.step("stop").reward == 0.0


def test_an_observation_has_the_published_parts(session: WebArenaEnvironment) -> None:
    index = task_about("What does the")
    seen = session.reset(index)
    start = "OBSERVATION:\nTab 0 (current): Welcome · Holm & Hearth\n\n[1] RootWebArea 'Welcome · Holm & Hearth' focused: True\n"
    assert seen.startswith(start)
    assert seen.endswith(
        f"\nURL: http://shop.test/\nOBJECTIVE: {embedded_tasks()[index].intent}\nPREVIOUS ACTION: "
        "None"
    )
    seen = play(session, "click [<link 'Cart'>]")
    assert "PREVIOUS ACTION: click [16] where [16] is link 'Cart'" in seen
    assert "URL: http://shop.test/cart" in seen


def test_reset_restores_the_known_state(session: WebArenaEnvironment) -> None:
    index = task_about("Put ")
    first = session.reset(index)
    seen = play(session, "click [<link 'Moorgate Lamp'>]", "click [<button 'Add to cart'>]")
    assert "1 pieces" in seen
    assert session.reset(index) == first
    assert "Your cart is empty" in play(session, "click [<link 'Cart'>]")


# -- actions


def test_words_around_an_action_make_no_difference(session: WebArenaEnvironment) -> None:
    for intent in ("What does the", "Buy one"):
        session.reset(task_about(intent))
        for _ in range(30):
            action = session.oracle_action()
            step = session.step(
                f"In summary, the next action I will perform is ```{action} where [2] is link "
                "'X'.```"
            )
            if step.done:
                break
        assert (step.reward, step.done) == (1.0, True)


def test_typing_replaces_the_content_of_a_field_and_enter_is_optional(
    session: WebArenaEnvironment,
) -> None:
    session.reset(task_about("Put "))
    seen = play(session, "type [<textbox 'Search products'>] [rug] [0]")
    assert "\t[4] StaticText 'rug'" in seen
    seen = play(session, "type [<textbox 'Search products'>] [O'Brien \"é\" & co] [0]")
    assert repr('O\'Brien "é" & co') in seen
    assert "rug'" not in seen
    assert "URL: http://shop.test/search?q=" in play(
        session, "type [<textbox 'Search products'>] [lamp]"
    )


def test_an_impossible_action_changes_nothing_and_states_the_reason(
    session: WebArenaEnvironment,
) -> None:
    before = session.reset(task_about("Put "))
    for action, why in {
        "click [999]": "No element [999] is in view",
        "type [<link 'Cart'>] [x]": "is a link and no text can be typed",
        "tab_focus [3]": "There is no tab 3",
        "go_forward": "no page to go to",
        "go_back": "no page to go to",
        "goto [http://example.com/]": "is not part of this task's sites: http://home.test, http://shop.test.",
        "goto [http://forum.test/]": "is not part of this task's sites",
        "goto [file:///etc/passwd]": "is not part of this task's sites",
        "goto [javascript:alert(1)]": "is not an address",
        "goto [chrome://version]": "is not part of this task's sites",
        "goto [http://shop.test:81/]": "is not part of this task's sites",
        "goto [http://user@shop.test/]": "is not part of this task's sites",
        "goto [http://[]": "is not an address",
        "goto [127.0.0.1]": "is not part of this task's sites",
    }.items():
        assert why in play(session, action), action
    assert play(session).partition("PREVIOUS")[0] == before.partition("PREVIOUS")[0]


def test_back_forward_scroll_and_keys_work(session: WebArenaEnvironment) -> None:
    session.reset(task_about("Who wrote the submission"))
    top = play(session, "click [<link 'Most commented'>]")
    assert "URL: http://forum.test/?sort=commented" in top
    below = play(session, "scroll [down]")
    assert "[2] link" not in below
    assert "row '" in below
    assert play(session, "press [Control+Home]").count("[2] link 'Lindens'") == 1
    assert "URL: http://forum.test/\n" in play(session, "go_back")
    assert "URL: http://forum.test/?sort=commented\n" in play(session, "go_forward")
    assert "focused: True" in play(session, "press [Tab]").split("[2]")[1]
    assert "is link 'Lindens'" in play(session, "hover [<link 'Lindens'>]")


def test_tabs_are_opened_focused_and_closed(session: WebArenaEnvironment) -> None:
    session.reset(task_about("Put "))
    assert "Tab 0: Welcome · Holm & Hearth | Tab 1 (current): \n" in play(session, "new_tab")
    assert "Tab 1 (current): Homepage\n" in play(session, "goto [home.test]")
    assert "Tab 0 (current): Welcome · Holm & Hearth | Tab 1: Homepage" in play(
        session, "tab_focus [0]"
    )
    assert "Tab 0 (current): Homepage\n" in play(session, "close_tab")
    assert "Tab 0 (current): \n" in play(session, "close_tab")
    for _ in range(8):
        last = play(session, "new_tab")
    assert "At most 8 tabs" in last


def test_each_session_has_a_clipboard_of_its_own(world: WebArena) -> None:
    one, other = world.create(), world.create()
    try:
        for each in (one, other):
            each.reset(task_about("Put "))
        field = "<textbox 'Search products'>"
        play(one, f"type [{field}] [secret] [0]", "press [Control+a]", "press [Control+c]")
        assert "secret" not in play(other, f"type [{field}] [] [0]", "press [Control+v]")
        assert "'secretsecret'" in play(one, "press [End]", "press [Control+v]")
        assert "StaticText 'secret" not in play(one, "press [Control+a]", "press [Control+x]")
        assert "'secretsecret'" in play(one, "press [Control+v]")
    finally:
        one.close()
        other.close()


def test_a_link_to_another_host_is_refused_by_the_proxy(session: WebArenaEnvironment) -> None:
    session.reset(task_about("Put "))
    seen = play(session, "goto [home.test]", "click [<link 'Lindens, a forum'>]")
    assert "This address is not part of the task's sites" in seen


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "replace")),
        st.builds(
            "{} [{}] [{}]".format,
            st.sampled_from(["click", "type", "press", "hover", "goto"]),
            st.integers(0, 40),
            st.text(max_size=20),
        ),
    )
)
def test_any_action_gets_an_observation(session: WebArenaEnvironment, action: str) -> None:
    if session.task is None:
        session.reset(task_about("Put "))
    step = session.step(action)
    assert step.observation.encode()
    assert step.reward == 0.0


# -- faults


def test_a_dead_browser_fails_its_sessions_and_new_ones_work(world: WebArena) -> None:
    sessions = [world.create(), world.create()]
    for one in sessions:
        one.reset(task_about("Put "))
    browsers = [
        child
        for child in chromium_processes(psutil.Process())
        if "--remote-debugging-pipe" in command_line(child)
    ]
    assert browsers
    for browser in browsers:
        kill(browser)
    for one in sessions:
        with pytest.raises(BrowserLostError):
            one.step("scroll [down]")
        with pytest.raises(EpisodeOverError):
            one.step("scroll [down]")
    fresh = world.create()
    assert solve(fresh, task_about("What does the"))[0] == 1.0
    fresh.close()


def test_an_exception_of_a_site_is_a_fault_and_not_an_observation(
    session: WebArenaEnvironment,
) -> None:
    session.reset(task_about("Put "))
    assert session._episode is not None
    session._episode.db.execute("DROP TABLE wishes")
    with pytest.raises(BrowserError) as failed:
        play(session, "click [<link 'Wish list'>]")
    assert isinstance(failed.value.__cause__, sqlite3.OperationalError)
    with pytest.raises(EpisodeOverError):
        session.step("stop")


def test_a_site_that_raises_while_an_episode_is_judged_gives_no_score(
    session: WebArenaEnvironment,
) -> None:
    session.reset(task_about("Buy one"))
    assert session._episode is not None
    session._episode.db.execute("DROP TABLE reviews")

    async def ask() -> None:
        assert session._window is not None
        await session._window.page.evaluate("fetch('/product/x').then(answer => answer.text())")

    session._shared.browsers.call(ask, 60)
    with pytest.raises(BrowserError) as failed:
        session.step("stop")
    assert isinstance(failed.value.__cause__, sqlite3.OperationalError)


@pytest.mark.parametrize("name", [name for name in EXECUTABLES if shutil.which(name)])
def test_window_has_one_renderer_in_every_browser(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEBARENA_CHROMIUM", name)
    before = set(chromium_processes(psutil.Process()))
    browsers = Browsers()
    world = WebArena({})
    world._shared.browsers = browsers
    sessions = [world.create() for _ in range(3)]
    for one in sessions:
        one.reset(task_about("Put "))
    commands = [
        command_line(process) for process in set(chromium_processes(psutil.Process())) - before
    ]
    renderers = [command for command in commands if "--type=renderer" in command]
    assert not [command for command in renderers if "--top-chrome-webui" in command]
    assert len(renderers) <= len(sessions) + 1  # Chromium keeps a spare process
    assert ("to install that: sudo apt-get install" in caplog.text) == (name != EXECUTABLES[0])
    # Chromium uses only the last list, so it must contain the features that Playwright disables.
    [first, last] = next(lists for command in commands if len(lists := _features_off(command)) == 2)
    assert first < last
    browsers.stop()


def _features_off(command: list[str]) -> list[set[str]]:
    lists = (
        argument.partition("--disable-features=")[2]
        for argument in command
        if argument.startswith("--disable-features=")
    )
    return [set(names.split(",")) for names in lists]


def test_a_missing_chromium_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBARENA_CHROMIUM", "/nowhere/chromium")
    world = WebArena({})
    with pytest.raises(
        ChromiumMissingError,
        match="sudo apt-get install --no-install-recommends chromium-headless-shell",
    ):
        world.create().reset(0)
    world.close()
