"""What a new user comes for, in a real browser: the failed turn, the same task later, a branch to success, the arm that won, a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from configs.recipe import load_recipe
from dashboards.run_folders import run_folders
from tasks.tracking.run_folder import RunFolder
from tests.support import viewer_walks
from tests.support.chromium import needs_chromium
from tests.support.recorded_runs import numbers_of, recorded_run, write_run
from tests.support.tiny_policy import build_tiny_policy
from tests.support.viewer_login import credentials

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        recorded_run(runs, seed=seed, method="rloo", skills=(0.1, 0.2, 0.1 * seed))
        made = recorded_run(runs, seed=seed, skills=(0.2, 0.4, 0.5 + 0.1 * seed))
    return made.path


@pytest.fixture(scope="module")
def viewer(run: Path) -> Iterator[str]:
    server = viewer_walks.started(run.parent)
    yield server.url
    server.end()


@pytest.fixture
def page(browser: Browser, viewer: str, run: Path) -> Iterator[Page]:
    context = browser.new_context(base_url=viewer, http_credentials=credentials(run.parent), viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(60_000)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    for _ in range(60):  # the index is brought up to date in the background
        page.goto("/trajectories?kind=evaluations&reward_to=0.99")
        if page.get_by_text("success 0.0 %").count():
            break
        page.wait_for_timeout(500)
    yield page
    assert not broken
    context.close()


def test_a_failed_held_out_task_is_found_compared_branched_to_success_and_sent(page: Page, run: Path, tmp_path: Path) -> None:
    turn = viewer_walks.to_the_turn_where_it_went_wrong(page, run.name)
    assert turn >= 1
    failed = page.url
    file = viewer_walks.sent_as_a_file(page, tmp_path)
    assert "What the goal is made of" in file.read_text()
    viewer_walks.to_the_same_task_over_training(page)
    assert page.get_by_role("region").count() >= 4
    page.goto(failed)
    viewer_walks.branched_to_success(page, turn)
    assert "reward 1" in page.locator("#status").inner_text()


def test_the_same_is_done_by_keys_alone(page: Page, run: Path) -> None:
    page.goto("/")
    [title] = [each.title for each in run_folders(run.parent) if each.path == run]
    reached(page, title)
    page.get_by_role("heading", name=title).wait_for()
    reached(page, "failures")
    page.get_by_role("heading", name="Trajectories", exact=True).wait_for()
    reached(page, "start / 0.")
    page.get_by_role("article").wait_for()
    page.keyboard.press("End")
    page.keyboard.press("k")
    page.keyboard.press("b")
    page.wait_for_url("**/play/*")
    page.keyboard.type("inventory")
    page.keyboard.press("Enter")
    page.get_by_text("by hand").wait_for()
    reached(page, "to the end")
    page.get_by_text("the episode is over: success").wait_for()


def reached(page: Page, words: str) -> None:
    """Goes to a link or button by the tabulator and presses it."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if words in str(page.evaluate("document.activeElement.innerText || ''")):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the tabulator does not lead to {words!r}")


def test_the_arm_that_won_is_said_in_words(page: Page) -> None:
    words = viewer_walks.to_the_arm_that_won(page)
    assert words.startswith("Highest at the end: grpo")
    assert "excludes 0" in words or "holds 0" in words


def test_tokens_are_coloured_by_what_the_loss_read(page: Page, run: Path) -> None:
    page.goto(f"/steps/{run.name}/rollouts/step-000002")
    page.locator("[data-drawn]").wait_for()
    page.locator("tr:not(:has(.warn)) .chip").first.click()
    colours = {}
    for how in ("advantage", "entropy", "gap", "mask"):
        page.locator("[data-do=colour]").select_option(how)
        assert page.locator("[data-do=legend]").inner_text()
        colours[how] = page.locator(".token").first.evaluate("token => token.style.backgroundColor")
    assert all(colours.values())
    assert len(set(colours.values())) == 4


def test_a_run_without_a_checkpoint_offers_none_to_watch(page: Page, run: Path) -> None:
    page.goto(f"/runs/{run.name}")
    assert page.get_by_role("button", name="watch its policy play").count() == 0


def test_a_runs_tables_follow_it_while_it_goes_on(browser: Browser, viewer: str, run: Path, tmp_path: Path) -> None:
    folder = RunFolder(run.parent, load_recipe("textcraft", {"algorithm.steps": 9, "seeds.training": 77}))
    with folder.claimed():
        write_run(folder, numbers_of(3), (0.4, 0.5), 77)
        page = browser.new_page(base_url=viewer, http_credentials=credentials(run.parent))
        page.goto(f"/runs/{folder.path.name}")
        page.get_by_text("live", exact=True).wait_for()
        assert "after step 2 of 9" in page.locator(".verdict").inner_text()
        folder.add_metrics(3, {"rollout/success": 0.5, "rollout/horizon": 8.0})
        page.get_by_text("after step 3 of 9").wait_for(timeout=60_000)
        page.close()


def test_the_policy_of_a_checkpoint_is_watched_while_it_plays(page: Page, run: Path, tmp_path: Path) -> None:
    folder = RunFolder(run.parent, load_recipe("textcraft", {"seeds.training": 78}))
    with folder.claimed():
        write_run(folder, numbers_of(2), (0.4, 0.5), 78)
    build_tiny_policy(folder.path / "checkpoints" / "step-000002")
    page.goto(f"/runs/{folder.path.name}")
    page.get_by_role("button", name="watch its policy play").click()
    page.wait_for_url("**/play/*")
    over = page.get_by_text("the episode is over: truncated by rollout.trajectory_tokens")  # its words are as random as its weights
    over.wait_for(timeout=300_000)  # torch and the weights are loaded meanwhile
    played = page.get_by_role("heading", name="Turn ").count()
    page.get_by_label("Who plays").select_option("expert")
    page.get_by_role("button", name="one turn").click()
    page.get_by_role("heading", name=f"Turn {played + 1} the expert").wait_for()
