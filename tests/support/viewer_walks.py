"""Do five tasks of a new user in the viewer with a real browser, and take pictures.

    python -m tests.support.viewer_walks RUNS OUT [--study RUNS]

This does the tasks on real runs and writes the pictures of docs/viewer.md, in both colour schemes
and in a narrow window.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from environments.webarena.browser import find_chromium
from tasks.provision.local import LocalServer
from tests.support.viewer_login import credentials

Look = Callable[[Page, str], None]
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 430, "height": 860}


def open_turn_of_divergence(page: Page, run: str) -> int:
    """Open a failed held-out trajectory at the turn where it diverges from every success.

    Returns:
        The turn, from 1.
    """
    page.goto("/")
    page.locator(f"a[href='/runs/{run}']").click()
    page.locator("[data-do=failures]").first.click()
    page.get_by_role("heading", name="Trajectories", exact=True).wait_for()
    for number in range(page.locator("tbody tr").count()):
        page.locator("tbody tr").nth(number).get_by_role("link").first.click()
        page.get_by_role("article").wait_for()
        divergence = page.locator("a[data-key=w]")
        if divergence.count():
            break
        page.go_back()
        page.get_by_role("heading", name="Trajectories", exact=True).wait_for()
    page.wait_for_load_state()  # keys work only after the page's scripts have run
    page.keyboard.press("w")
    turn = int(divergence.get_attribute("data-turn") or "0")
    page.locator(f".turn.now#turn-{turn}").wait_for()
    page.locator(f".world[data-turn='{turn}']").wait_for()
    return turn


def open_task_over_training(page: Page) -> None:
    """Open the task of a trajectory at every evaluation."""
    page.locator("[data-do=over-training]").click()
    page.locator("#task-over-training").wait_for()


def branch_to_success(page: Page, turn: int) -> None:
    """Branch from the turn before the divergence and let the expert play to success."""
    page.locator(f"#turn-{turn - 1}").click()
    page.locator("[data-key=b]").click()
    page.wait_for_url("**/play/*")
    page.locator("button[value=rest]").click()
    page.locator("#status[data-outcome=success]").wait_for()


def open_study(page: Page) -> Locator:
    """Open a study and return its report."""
    page.goto("/")
    page.locator("[data-do=study]").first.click()
    return page.locator("#report")


def export(page: Page, folder: Path) -> Path:
    """Download a trajectory as an HTML file."""
    with page.expect_download() as download:
        page.locator("[data-do=download]").click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


@dataclass(frozen=True)
class Viewer:
    """A viewer of some runs.

    Attributes:
        runs: Folder of the runs.
        server: The viewer's process.
    """

    runs: Path
    server: LocalServer

    def context(self, browser: Browser, **options: Any) -> BrowserContext:
        """Open a browser context with the login of the viewer."""
        return browser.new_context(
            base_url=self.server.url, http_credentials=credentials(self.runs), **options
        )


def take_all(
    browser: Browser, viewer: Viewer, study: Viewer, run: str, look: Look
) -> dict[str, float]:
    """Do all five tasks on real runs and return the seconds of each."""
    context = viewer.context(browser, viewport=WIDE)
    page, seconds, began = context.new_page(), {}, time.perf_counter()
    page.set_default_timeout(120_000)

    def done(name: str) -> None:
        nonlocal began
        seconds[name], began = time.perf_counter() - began, time.perf_counter()

    turn = open_turn_of_divergence(page, run)
    done("find the failed turn")
    look(page, "failed-turn")
    failed, began = page.url, time.perf_counter()
    open_task_over_training(page)
    done("compare over training")
    look(page, "task-over-training")
    page.goto(failed)
    began = time.perf_counter()
    branch_to_success(page, turn)
    done("branch")
    look(page, "branch")
    page.goto(failed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = export(page, Path(folder))
        exported = context.new_page()
        exported.goto(f"{file.as_uri()}#turn-{turn}")
        done("share")
        look(exported, "shared-file")
        exported.close()
    context.close()
    context = study.context(browser, viewport=WIDE)
    page = context.new_page()
    page.goto("/")
    began = time.perf_counter()
    open_study(page).wait_for()
    done("study")
    look(page, "study")
    context.close()
    return seconds


def further_pictures(browser: Browser, viewer: Viewer, run: str, step: int, look: Look) -> None:
    """Take the other pictures of docs/viewer.md.

    They show a run, a step's timeline, tokens by advantage, and a group.
    """
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", NARROW)):
        context = viewer.context(browser, viewport=size, color_scheme=scheme)
        page, suffix = context.new_page(), f"-{scheme}{'-narrow' if size is NARROW else ''}"
        page.set_default_timeout(120_000)
        page.goto(f"/runs/{run}")
        page.locator("[data-drawn]").last.wait_for()
        look(page, f"run{suffix}")
        page.goto(f"/steps/{run}/rollouts/step-{step:06d}")
        chip = page.locator("tr:not(:has(.warn)) .chip.success").first
        if page.locator("[data-figure]").count():
            page.locator("[data-drawn]").wait_for()
            page.evaluate("document.querySelector('#timeline').scrollIntoView()")
            look(page, f"lanes{suffix}")
        chip.click()
        page.locator("[data-do=colour]").select_option("advantage")
        page.keyboard.press("Escape")
        page.locator("h1").click()
        page.keyboard.press("j")
        page.locator(".world[data-turn='1']").wait_for()
        look(page, f"tokens{suffix}")
        page.locator("[data-do=group]").click()
        look(page, f"group{suffix}")
        context.close()


def every_kind_of_page(run: str, task: int) -> list[str]:
    """Return the path of each kind of page, for a run and one of its held-out tasks."""
    return [
        "/",
        "/trajectories",
        f"/compare?run={run}",
        "/play",
        f"/runs/{run}",
        f"/steps/{run}/rollouts/step-000002",
        f"/groups/{run}/rollouts/step-000002/0",
        f"/tasks/textcraft/{task}?run={run}",
        f"/trajectories/{run}/rollouts/step-000002/0/0",
        f"/trajectories/{run}/evaluations/phase-3/0/0",
    ]


def main() -> None:
    """Do the tasks on real runs and write the pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.viewer_walks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("runs", type=Path, help="folder with a finished run in TextCraft")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument(
        "--study", type=Path, help="folder with the runs of a study (default: RUNS)"
    )
    parser.add_argument("--run", help="name of the run's folder (default: the first of TextCraft)")
    parser.add_argument(
        "--step",
        type=int,
        default=12,
        help="training step of the further pictures (default: %(default)s)",
    )
    chosen = parser.parse_args()
    run = chosen.run or next(path.name for path in sorted(chosen.runs.glob("textcraft-*")))
    chosen.out.mkdir(parents=True, exist_ok=True)

    def look(page: Page, name: str) -> None:
        page.wait_for_timeout(400)  # until the transitions of the figures have ended
        page.screenshot(path=str(chosen.out / f"{name}.png"))

    servers = [
        Viewer(folder, started(folder))
        for folder in dict.fromkeys((chosen.runs, chosen.study or chosen.runs))
    ]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(find_chromium()), args=["--no-sandbox"]
            )
            for name, seconds in take_all(browser, servers[0], servers[-1], run, look).items():
                sys.stdout.write(f"{seconds:6.1f} s  {name}\n")
            further_pictures(browser, servers[0], run, chosen.step, look)
            browser.close()
    finally:
        for server in servers:
            server.server.end()


def started(runs: Path) -> LocalServer:
    """Start a viewer of some runs."""
    command = [sys.executable, "-m", "dashboards", "--runs", str(runs), "--port", "{port}"]
    server = LocalServer("viewer", command, health_path="/health", start_deadline_s=120.0)
    server.start()
    return server


if __name__ == "__main__":
    main()
