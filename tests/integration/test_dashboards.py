"""The viewer as a person uses it: real pages of real runs in a real browser, by clicks and by keys alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from dashboards.run_folders import run_folders
from tasks.provision.local import LocalServer
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tests.support.chromium import needs_chromium
from tests.support.recorded_runs import numbers_of, played, recorded_run
from tests.support.viewer_login import asked, credentials
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
    write_trajectories(folder / "collected" / "babyai" / "part-000000.parquet", [played("babyai", 30, skill=0.7, horizon=4)])
    return folder


@pytest.fixture(scope="module")
def viewer(runs: Path, state_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "dashboards", "--runs", str(runs), "--port", "{port}"]
    server = LocalServer("viewer", command, health_path="/health", state_dir=state_dir, start_deadline_s=120.0)
    server.start()
    yield server.url
    server.end()


@pytest.fixture
def page(browser: Browser, viewer: str, runs: Path) -> Iterator[Page]:
    """A page that fails the test if anything is asked of another host, or a script of ours breaks."""
    context = browser.new_context(base_url=viewer, http_credentials=credentials(runs), viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    elsewhere: list[str] = []
    broken: list[str] = []
    page.on("request", lambda request: None if request.url.startswith((viewer, "data:", "blob:")) else elsewhere.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto("/")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    for _ in range(60):  # the index is brought up to date in the background
        if page.get_by_role("link", name="collected/hostile").count():
            break
        page.wait_for_timeout(500)
        page.reload()
    yield page
    assert not elsewhere
    assert not broken
    context.close()


def run_of(runs: Path, method: str, seed: int) -> str:
    return next(
        p.parent.name for p in runs.glob("*/recipe.yaml") if f"name: {method}\n" in p.read_text() and f"training: {seed}\n" in p.read_text()
    )


def test_from_a_run_to_the_turn_where_a_failed_task_went_wrong_by_clicks(page: Page, runs: Path) -> None:
    page.locator(f"a[href='/runs/{run_of(runs, 'grpo', 0)}']").click()
    page.locator("[data-drawn]").first.wait_for()
    page.get_by_role("link", name="failures").first.click()
    assert "reward_to=0.99" in page.url
    page.locator("tbody a").first.click()
    page.get_by_role("button", name="turn ›").click()
    page.get_by_role("button", name="turn ›").click()
    assert page.locator("[data-do=where]").inner_text().startswith("turn 2 of")
    assert page.url.endswith("#turn-2")
    page.locator(".world[data-turn='2'] >> text=What the goal is made of").wait_for()


def test_the_drawn_world_follows_keys_alone_and_an_address_leads_to_its_turn(page: Page, runs: Path) -> None:
    page.goto(f"/trajectories/{run_of(runs, 'grpo', 0)}/evaluations/phase-3/0/0#turn-1")
    page.locator(".world[data-turn='1']").wait_for()
    page.keyboard.press("j")
    page.locator(".world[data-turn='2']").wait_for()
    page.keyboard.press("Home")
    page.locator(".world[data-turn='0']").wait_for()
    page.keyboard.press("]")
    page.keyboard.press("Space")
    page.locator(".turn.now#turn-2").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.wait_for_url("**/groups/**")


def test_members_of_a_group_stand_side_by_side_with_their_advantages(page: Page, runs: Path) -> None:
    run = run_of(runs, "grpo", 0)
    page.goto(f"/groups/{run}/rollouts/step-000002/1")
    group = [t for t in read_trajectories(runs / run / "rollouts" / "step-000002.parquet") if t.group == 1]
    mean = sum(t.reward for t in group) / len(group)
    for member in group:
        section = page.get_by_role("region", name=f"Member {member.member}")
        assert f"advantage {member.reward - mean:+.3f}" in section.inner_text()
        assert section.locator("ol > li").count() == len(member.turns)


def test_the_same_task_over_training_says_where_two_trajectories_part(page: Page, runs: Path) -> None:
    run = run_of(runs, "grpo", 0)
    samples = [
        [t for t in read_trajectories(runs / run / "evaluations" / f"{name}.parquet") if t.group == 0]
        for name in ("start", "phase-1", "phase-2", "phase-3")
    ]
    played_at = [next((t for t in each if t.succeeded), each[0]) for each in samples]
    page.goto(f"/tasks/textcraft/{played_at[0].task}?run={run}")
    first, second = ([turn.action for turn in each.turns] for each in played_at[:2])
    parts = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    text = page.get_by_role("region", name="phase-1").inner_text()
    assert f"{sum(t.succeeded for t in samples[1])} of {len(samples[1])} succeeded" in text
    assert f"parts from the one before at turn {parts + 1}" in text or first == second


def test_a_branch_goes_on_by_hand_and_by_the_expert_to_success_and_is_kept(page: Page, runs: Path) -> None:
    run = run_of(runs, "rloo", 0)
    page.goto(f"/trajectories/{run}/evaluations/start/0/0")
    page.keyboard.press("j")
    page.get_by_role("button", name="go on from here").click()
    page.wait_for_url("**/play/*")
    page.get_by_label("Action by hand").fill("inventory")
    page.keyboard.press("Enter")
    page.locator("#turns[data-turns='2']").wait_for()
    page.get_by_role("button", name="to the end").click()
    page.get_by_text("the episode is over").wait_for()
    page.get_by_role("button", name="keep as a trajectory").click()
    page.get_by_text("Kept as collected/textcraft-played").wait_for()
    (kept,) = (runs / "collected" / "textcraft-played").glob("*.parquet")
    (trajectory,) = read_trajectories(kept)
    recorded = read_trajectories(runs / run / "evaluations" / "start.parquet")[0]
    assert trajectory.succeeded
    assert trajectory.turns[0].action == recorded.turns[0].action
    assert trajectory.turns[1].action == "inventory"


def test_a_study_says_which_arm_ended_higher_and_whether_the_interval_excludes_0(page: Page) -> None:
    page.get_by_role("link", name="as a study").click()
    page.locator("[data-drawn]").wait_for()
    rows = page.locator("tbody tr")
    assert rows.count() == 2
    assert "reference" in rows.nth(0).inner_text()
    assert "excludes 0" in rows.nth(1).inner_text() or "holds 0" in rows.nth(1).inner_text()
    assert page.locator(".js-plotly-plot .scatterlayer .trace").count() >= 2


def test_runs_are_sorted_by_any_column_and_stay_sorted(page: Page, runs: Path) -> None:
    seeds = [str(cell) for cell in ("0", "0", "1", "1", "2", "2")]
    column = page.locator("table[data-sortable] tbody tr td:nth-child(8)")
    page.get_by_role("button", name="seed").click()
    assert column.all_inner_texts() == seeds
    page.get_by_role("button", name="seed").press("Enter")
    assert column.all_inner_texts() == seeds[::-1]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("seed")
    names = page.locator("table[data-sortable] tbody tr td:first-child a").all_inner_texts()
    assert sorted(names) == sorted(run.title for run in run_folders(runs))
    assert set(page.locator("table[data-sortable] tbody tr td:nth-child(2)").all_inner_texts()) == {"finished"}


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


def test_a_shared_file_shows_every_turn_with_its_world_and_asks_nobody(browser: Browser, viewer: str, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "shared.html"
    with asked(f"{viewer}/shared/{run_of(runs, 'grpo', 0)}/evaluations/phase-3/0/0", runs) as answer:
        assert "attachment" in answer.headers["content-disposition"]
        file.write_bytes(answer.read())
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("[data-do=where]").inner_text().startswith("turn 2 of")
    assert "What the goal is made of" in page.locator(".world").inner_text()
    assert requests == [file.as_uri()]
    page.close()


def test_texts_of_worlds_and_models_are_never_run(page: Page) -> None:
    for address in ("/trajectories/collected/hostile/collected/part-000000/0/0", "/groups/collected/hostile/collected/part-000000/0"):
        page.goto(address)
        page.wait_for_timeout(500)
        assert page.title() != "taken"
        assert page.locator("pre img, pre script, .world img").count() == 0
        assert ATTACK in page.locator("main").inner_text()


def test_babyais_grid_is_shown_beside_its_turns(page: Page) -> None:
    page.goto("/trajectories/collected/babyai/collected/part-000000/0/0#turn-1")
    grid = page.locator(".world[data-turn='1'] img")
    grid.wait_for()
    assert grid.evaluate("image => image.naturalWidth") > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_a_narrow_window_in_both_colour_schemes(browser: Browser, viewer: str, runs: Path, scheme: str) -> None:
    context = browser.new_context(
        base_url=viewer,
        http_credentials=credentials(runs),
        viewport={"width": 420, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    for address in every_kind_of_page(run_of(runs, "grpo", 0), NUMBER):
        page.goto(address)
        page.wait_for_timeout(300)  # figures take their width once they are drawn
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


def test_a_page_of_another_origin_cannot_play_in_the_users_name(browser: Browser, viewer: str, runs: Path, tmp_path: Path) -> None:
    import http.server
    import threading

    (tmp_path / "evil.html").write_text(f"<form method=post action='{viewer}/play'><input name=environment value=textcraft></form>")
    handler = lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=str(tmp_path))  # noqa: E731
    elsewhere = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    page = browser.new_page(http_credentials=credentials(runs))
    page.goto(f"http://localhost:{elsewhere.server_port}/evil.html")
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    assert "only the viewer's own pages may ask this" in page.inner_text("body")
    page.close()
    elsewhere.shutdown()


def test_a_name_that_is_not_the_viewers_is_refused(viewer: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(viewer, headers={"Host": "rebound.example"}))


def test_it_does_not_listen_for_others_without_their_names() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
    command = [sys.executable, "-m", "dashboards", "--runs", ".", "--host", "0.0.0.0"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "--allowed-hosts" in refused.stderr


def test_an_address_that_leads_nowhere_says_so(page: Page) -> None:
    page.goto("/runs/nobody")
    assert "there is no run 'nobody'" in page.inner_text("main")
    page.goto("/runs/../../etc/passwd")
    assert "page" in page.content() or "Not Found" in page.content() or "no run" in page.content()
    page.goto("/trajectories?turns_from=few")
    said = page.inner_text("main")
    assert "turns_from" in said
    assert "'few'" in said
