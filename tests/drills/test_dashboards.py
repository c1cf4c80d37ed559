"""Tests of the viewer's pages over recorded runs, in a real browser with mouse and keyboard."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from dashboards.run_folders import run_folders
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tests.support.chromium import needs_chromium
from tests.support.processes import local_server, run_module
from tests.support.recorded_runs import numbers_of, played, recorded_run
from tests.support.viewer_login import credentials, open_with_login
from tests.support.viewer_walks import every_kind_of_page

pytestmark = [pytest.mark.slow, needs_chromium]

NUMBER = numbers_of(1)[0]
ATTACK = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recorded_run(folder, seed=0)
    recorded_run(folder, seed=1)
    recorded_run(folder, seed=0, method="rloo", skills=(0.1, 0.2, 0.3))
    recorded_run(folder, seed=1, method="rloo", skills=(0.1, 0.2, 0.5))
    recorded_run(folder, seed=2)
    recorded_run(folder, seed=2, method="rloo", skills=(0.0, 0.1, 0.2))
    hostile = played("textcraft", 26, skill=0.5, horizon=3)
    hostile.turns[0].observation = hostile.turns[0].message = ATTACK
    hostile.first_observation += ATTACK
    write_trajectories(folder / "collected" / "hostile" / "part-000000.parquet", [hostile])
    write_trajectories(
        folder / "collected" / "babyai" / "part-000000.parquet",
        [played("babyai", 30, skill=0.7, horizon=4)],
    )
    return folder


@pytest.fixture(scope="module")
def viewer(runs: Path, state_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "dashboards", "--runs", str(runs), "--port", "{port}"]
    with local_server("viewer", command, health_path="/health", state_dir=state_dir) as server:
        yield server.url


@pytest.fixture
def page(browser: Browser, viewer: str, runs: Path) -> Iterator[Page]:
    """Yield a page, and fail if it contacted another host or a script raised an error."""
    context = browser.new_context(
        base_url=viewer, http_credentials=credentials(runs), viewport={"width": 1400, "height": 900}
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    other_hosts: list[str] = []
    script_errors: list[str] = []
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((viewer, "data:", "blob:"))
            else other_hosts.append(request.url)
        ),
    )
    page.on("pageerror", lambda error: script_errors.append(str(error)))
    page.goto("/")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    for _ in range(60):  # the index is updated in the background
        if page.get_by_role("link", name="collected/hostile").count():
            break
        page.wait_for_timeout(500)
        page.reload()
    yield page
    assert not other_hosts
    assert not script_errors
    context.close()


def run_of(runs: Path, method: str, seed: int) -> str:
    return next(
        p.parent.name
        for p in runs.glob("*/recipe.yaml")
        if f"name: {method}\n" in p.read_text() and f"training: {seed}\n" in p.read_text()
    )


def test_clicks_lead_from_a_run_to_a_turn_of_a_failed_trajectory(page: Page, runs: Path) -> None:
    page.locator(f"a[href='/runs/{run_of(runs, 'grpo', 0)}']").click()
    page.locator("[data-drawn]").first.wait_for()
    page.locator("[data-do=failures]").first.click()
    assert "success=no" in page.url
    page.locator("tbody a").first.click()
    page.locator("[data-do=on]").click()
    page.locator("[data-do=on]").click()
    page.locator(".turn.now#turn-2").wait_for()
    assert page.url.endswith("#turn-2")
    page.locator(".world[data-turn='2'] .tree").wait_for()


def test_the_drawing_follows_the_keys_and_the_turn_of_the_address(page: Page, runs: Path) -> None:
    page.goto(f"/trajectories/{run_of(runs, 'grpo', 0)}/evaluations/phase-3/0/0#turn-1")
    page.locator(".world[data-turn='1']").wait_for()
    page.keyboard.press("j")
    page.locator(".world[data-turn='2']").wait_for()
    page.keyboard.press("Home")
    page.locator(".world[data-turn='0']").wait_for()
    page.keyboard.press("]")
    page.keyboard.press("Space")
    last = page.locator(".turn").count() - 1  # a busy machine can miss an earlier turn
    page.locator(f".turn.now#turn-{last}").wait_for()
    page.keyboard.press("?")
    page.locator("dialog#keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.wait_for_url("**/groups/**")


def test_a_group_page_shows_the_advantage_and_the_turns_of_each_member(
    page: Page, runs: Path
) -> None:
    run = run_of(runs, "grpo", 0)
    page.goto(f"/groups/{run}/rollouts/step-000002/1")
    group = [
        t
        for t in read_trajectories(runs / run / "rollouts" / "step-000002.parquet")
        if t.group == 1
    ]
    mean = sum(t.reward for t in group) / len(group)
    for member in group:
        section = page.locator(f"section[data-member='{member.member}']")
        assert (
            section.locator("[data-advantage]").get_attribute("data-advantage")
            == f"{member.reward - mean:+.3f}"
        )
        assert section.locator("ol > li").count() == len(member.turns)


def test_a_task_over_training_shows_successes_and_the_first_differing_turn(
    page: Page, runs: Path
) -> None:
    run = run_of(runs, "grpo", 0)
    samples = [
        [
            t
            for t in read_trajectories(runs / run / "evaluations" / f"{name}.parquet")
            if t.group == 0
        ]
        for name in ("start", "phase-1", "phase-2", "phase-3")
    ]
    played_at = [next((t for t in each if t.succeeded), each[0]) for each in samples]
    page.goto(f"/tasks/textcraft/{played_at[0].task}?run={run}")
    first, second = ([turn.action for turn in each.turns] for each in played_at[:2])
    differing = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    column = page.locator("section[data-evaluation='phase-1']")
    assert column.get_attribute("data-succeeded") == str(sum(t.succeeded for t in samples[1]))
    assert column.get_attribute("data-diverges") == (
        str(differing + 1) if first != second else None
    )


def test_a_branch_is_played_by_hand_and_by_the_expert_to_success_and_saved(
    page: Page, runs: Path
) -> None:
    run = run_of(runs, "rloo", 0)
    page.goto(f"/trajectories/{run}/evaluations/start/0/0")
    page.keyboard.press("j")
    page.locator("[data-key=b]").click()
    page.wait_for_url("**/play/*")
    page.locator("[name=action]").fill("inventory")
    page.keyboard.press("Enter")
    page.locator("#turns[data-turns='2']").wait_for()
    page.locator("button[value=rest]").click()
    page.locator("#status[data-outcome=success]").wait_for()
    page.locator("button[value=keep]").click()
    page.locator("#status", has_text="collected/textcraft-played").wait_for()
    (kept,) = (runs / "collected" / "textcraft-played").glob("*.parquet")
    (trajectory,) = read_trajectories(kept)
    recorded = read_trajectories(runs / run / "evaluations" / "start.parquet")[0]
    assert trajectory.succeeded
    assert trajectory.turns[0].action == recorded.turns[0].action
    assert trajectory.turns[1].action == "inventory"


def test_the_runs_of_an_experiment_are_compared_with_the_first(page: Page) -> None:
    page.locator("[data-do=compare]").click()
    page.locator("[data-drawn]").wait_for()
    assert page.locator("#compared").get_attribute("data-runs") == "6"
    assert page.locator("[data-reference]").count() == 1
    assert page.locator(".js-plotly-plot .scatterlayer .trace").count() >= 6


def test_runs_are_sorted_by_a_column_in_both_directions(page: Page, runs: Path) -> None:
    seeds = [str(cell) for cell in ("0", "0", "1", "1", "2", "2")]
    column = page.locator("table[data-sortable] tbody tr td:nth-child(8)")
    page.locator("[data-column=seed] button").click()
    assert column.all_inner_texts() == seeds
    page.locator("[data-column=seed] button").press("Enter")
    assert column.all_inner_texts() == seeds[::-1]
    assert page.locator("th[aria-sort=descending]").get_attribute("data-column") == "seed"
    names = page.locator("table[data-sortable] tbody tr td:first-child a").all_inner_texts()
    assert sorted(names) == sorted(run.title for run in run_folders(runs))
    statuses = page.locator("table[data-sortable] [data-status]")
    assert {each.get_attribute("data-status") for each in statuses.all()} == {"finished"}


def test_a_figure_is_saved_as_svg_and_png_and_its_data_as_csv(page: Page, runs: Path) -> None:
    page.goto(f"/runs/{run_of(runs, 'grpo', 0)}")
    page.locator("[data-drawn]").first.wait_for()
    for kind, begins in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with page.expect_download() as saved:
            page.locator(f"[data-save={kind}]").first.click()
        assert Path(saved.value.path()).read_bytes().startswith(begins)
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").first.click()
    table = Path(saved.value.path()).read_text().splitlines()
    assert table[0].startswith("step,")
    assert len(table) == 1 + 3


def test_an_exported_trajectory_shows_its_drawings_without_requests(
    browser: Browser, viewer: str, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "shared.html"
    with open_with_login(
        f"{viewer}/shared/{run_of(runs, 'grpo', 0)}/evaluations/phase-3/0/0", runs
    ) as answer:
        assert "attachment" in answer.headers["content-disposition"]
        file.write_bytes(answer.read())
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.locator(".turn.now#turn-2").wait_for()
    page.locator(".world .tree").wait_for()
    assert requests == [file.as_uri()]
    page.close()


def test_texts_of_worlds_and_models_are_never_executed(page: Page) -> None:
    for address in (
        "/trajectories/collected/hostile/collected/part-000000/0/0",
        "/groups/collected/hostile/collected/part-000000/0",
    ):
        page.goto(address)
        page.wait_for_timeout(500)
        assert page.title() != "taken"
        assert page.locator("pre img, pre script, .world img").count() == 0
        assert ATTACK in page.locator("main").inner_text()


def test_the_grid_of_babyai_is_shown_beside_its_turns(page: Page) -> None:
    page.goto("/trajectories/collected/babyai/collected/part-000000/0/0#turn-1")
    grid = page.locator(".world[data-turn='1'] img")
    grid.wait_for()
    assert grid.evaluate("image => image.naturalWidth") > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_narrow_window_in_both_colour_schemes(
    browser: Browser, viewer: str, runs: Path, scheme: str
) -> None:
    context = browser.new_context(
        base_url=viewer,
        http_credentials=credentials(runs),
        viewport={"width": 420, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    for address in every_kind_of_page(run_of(runs, "grpo", 0), NUMBER):
        page.goto(address)
        page.wait_for_timeout(300)  # a figure gets its width when it is drawn
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, address
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 27)")
    context.close()


def test_every_control_has_a_name_for_screen_readers(page: Page, runs: Path) -> None:
    for address in every_kind_of_page(run_of(runs, "grpo", 0), NUMBER):
        page.goto(address)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input:not([type=hidden]), select, a[href]")].filter(control =>
            !(control.innerText || control.getAttribute("aria-label") || control.title || (control.labels && control.labels.length)))
            .map(control => control.outerHTML)"""
        )
        assert nameless == []


def test_a_page_of_another_origin_cannot_start_an_episode(
    browser: Browser, viewer: str, runs: Path, tmp_path: Path
) -> None:
    import http.server
    import threading

    (tmp_path / "evil.html").write_text(
        f"<form method=post action='{viewer}/play'><input name=environment value=textcraft></form>"
    )
    handler = lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=str(tmp_path))  # noqa: E731
    elsewhere = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    page = browser.new_page(http_credentials=credentials(runs))
    page.goto(f"http://localhost:{elsewhere.server_port}/evil.html")
    with page.expect_navigation() as navigation:
        page.evaluate("document.forms[0].submit()")
    response = navigation.value
    assert response is not None
    assert response.status == 403
    page.close()
    elsewhere.shutdown()


def test_an_unknown_host_name_is_rejected(viewer: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as rejected:
        urllib.request.urlopen(urllib.request.Request(viewer, headers={"Host": "rebound.example"}))
    assert rejected.value.code == 400


def test_listening_beyond_this_machine_requires_allowed_hosts() -> None:
    refused = run_module("dashboards", "--runs", ".", "--host", "0.0.0.0")
    assert refused.returncode == 1
    assert "--allowed-hosts" in refused.stderr


def test_an_address_that_does_not_exist_or_is_invalid_gets_an_error_page(page: Page) -> None:
    for address, status, field in (
        ("/runs/unknown", 404, None),
        ("/trajectories?turns_from=few", 400, "turns_from"),
    ):
        response = page.goto(address)
        assert response is not None
        assert response.status == status
        assert page.locator("#error").get_attribute("data-field") == field
    outside = page.goto("/runs/..%2F..%2Fetc")
    assert outside is not None
    assert outside.status == 404
