"""Tests of a new user's tasks in the viewer, in a real browser.

The user finds a failed turn, branches to success, compares arms and exports a file.
"""

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
    context = browser.new_context(
        base_url=viewer,
        http_credentials=credentials(run.parent),
        viewport={"width": 1280, "height": 860},
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    script_errors: list[str] = []
    page.on("pageerror", lambda error: script_errors.append(str(error)))
    for _ in range(60):  # the index is updated in the background
        page.goto("/trajectories?kind=evaluations&reward_to=0.99")
        if page.locator("#count:not([data-count='0'])").count():
            break
        page.wait_for_timeout(500)
    yield page
    assert not script_errors
    context.close()


def test_a_failed_held_out_task_is_found_exported_compared_and_branched_to_success(
    page: Page, run: Path, tmp_path: Path
) -> None:
    turn = viewer_walks.open_turn_of_divergence(page, run.name)
    assert turn >= 1
    failed = page.url
    file = viewer_walks.export(page, tmp_path)
    assert "<ul class=tree>" in file.read_text()
    viewer_walks.open_task_over_training(page)
    assert page.get_by_role("region").count() >= 4
    page.goto(failed)
    viewer_walks.branch_to_success(page, turn)


def test_a_trajectory_is_found_and_branched_to_success_with_the_keyboard(
    page: Page, run: Path
) -> None:
    page.goto("/")
    [title] = [each.title for each in run_folders(run.parent) if each.path == run]
    press(page, f"a[href='/runs/{run.name}']")
    page.get_by_role("heading", name=title).wait_for()
    press(page, "[data-do=failures]")
    page.get_by_role("heading", name="Trajectories", exact=True).wait_for()
    press(page, "a[href*='/evaluations/start/0/']")
    page.get_by_role("article").wait_for()
    page.wait_for_load_state()  # its scripts read the keys
    page.keyboard.press("End")
    page.keyboard.press("k")
    page.keyboard.press("b")
    page.wait_for_url("**/play/*")
    page.keyboard.type("inventory")
    page.keyboard.press("Enter")
    page.locator("[data-player='by hand']").wait_for()
    press(page, "button[value=rest]")
    page.locator("#status[data-outcome=success]").wait_for()


def press(page: Page, selector: str) -> None:
    """Move the focus to an element with the Tab key and press Enter."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the Tab key does not reach {selector}")


def test_a_study_opens_with_its_report(page: Page, run: Path) -> None:
    folder = run.parent / "studies" / "methods-1a2b"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# methods")
    assert viewer_walks.open_study(page).inner_text() == "# methods"


def test_tokens_are_coloured_by_the_training_data(page: Page, run: Path) -> None:
    page.goto(f"/steps/{run.name}/rollouts/step-000002")
    page.locator("[data-drawn]").wait_for()
    page.locator("tr:not(:has(.warn)) .chip").first.click()
    page.wait_for_load_state()  # the page's scripts have run
    colours = {}
    for colouring in ("advantage", "entropy", "gap", "mask"):
        page.locator("[data-do=colour]").select_option(colouring)
        assert page.locator("[data-do=legend]").inner_text()
        colours[colouring] = page.locator(".token").first.evaluate(
            "token => token.style.backgroundColor"
        )
    assert all(colours.values())
    assert len(set(colours.values())) == 4


def test_a_run_without_a_checkpoint_cannot_be_watched(page: Page, run: Path) -> None:
    page.goto(f"/runs/{run.name}")
    assert page.locator("#watch").count() == 0


def test_the_page_of_an_unfinished_run_updates_itself(
    browser: Browser, viewer: str, run: Path, tmp_path: Path
) -> None:
    folder = RunFolder(
        run.parent, load_recipe("textcraft", {"algorithm.steps": 9, "seeds.training": 77})
    )
    with folder.claimed():
        folder.begin("walks")
        write_run(folder, numbers_of(3), (0.4, 0.5), 77)
        page = browser.new_page(base_url=viewer, http_credentials=credentials(run.parent))
        script_errors: list[str] = []
        page.on("pageerror", lambda error: script_errors.append(str(error)))
        page.goto(f"/runs/{folder.path.name}")
        page.locator("#live").wait_for()
        assert page.locator("#health").get_attribute("data-step") == "2"
        folder.add_metrics(3, {"rollout/success": 0.5, "rollout/horizon": 8.0})
        page.locator("#health[data-step='3']").wait_for(timeout=60_000)
    page.locator("#live").wait_for(state="detached", timeout=60_000)
    with folder.claimed():  # the run continues
        folder.add_metrics(4, {"rollout/success": 0.5, "rollout/horizon": 8.0})
        page.locator("#health[data-step='4']").wait_for(timeout=60_000)
        page.locator("#live").wait_for()
    page.close()
    assert not script_errors


def test_a_figure_is_drawn_as_soon_as_the_viewer_answers(page: Page, run: Path) -> None:
    page.route("**/figures/**", lambda route: route.abort())
    page.goto(f"/runs/{run.name}")
    figures = page.locator("[data-figure]")
    figures.filter(has_text="yet").first.wait_for()
    page.unroute("**/figures/**")
    page.locator("[data-figure][data-drawn]").first.wait_for(timeout=60_000)


def test_a_checkpoint_plays_while_the_page_updates_itself(
    page: Page, run: Path, tmp_path: Path
) -> None:
    folder = RunFolder(run.parent, load_recipe("textcraft", {"seeds.training": 78}))
    with folder.claimed():
        folder.begin("walks")
        write_run(folder, numbers_of(2), (0.4, 0.5), 78)
    build_tiny_policy(folder.path / "checkpoints" / "step-000002")
    page.goto(f"/runs/{folder.path.name}")
    page.locator("#watch").click()
    page.wait_for_url("**/play/*")
    ended = page.locator(
        "#status[data-outcome=truncated][data-reason='rollout.trajectory_tokens']"
    )  # the weights are random
    ended.wait_for(timeout=300_000)  # torch and the weights are loaded first
    turns = page.locator("#turns [data-player]").count()
    page.locator("[name=agent]").select_option("expert")
    page.locator("button[value=turn]").click()
    page.locator("[data-player=expert]").wait_for()
    assert page.locator("#turns [data-player]").count() == turns + 1
