"""Tests of the viewer's login, its API keys, and numbers of any size in its addresses."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tasks.provision.services import login, login_file
from tests.support.chromium import needs_chromium
from tests.support.listener import listener
from tests.support.processes import local_server
from tests.support.recorded_runs import recorded_run
from tests.support.viewer_login import basic, credentials

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
OTHER_USER = 65_534
HUGE = ("9" * 15, "9" * 23, "9" * 5000, "-1", "1e400", "nan", "٣", "1_0", "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recorded_run(folder)
    return folder


@pytest.fixture(scope="module")
def viewer(runs: Path, state_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "dashboards", "--runs", str(runs), "--port", "{port}"]
    with local_server(
        "viewer",
        command,
        health_path="/health",
        state_dir=state_dir,
        environment={"OPENAI_API_KEY": "sk-secret"},
    ) as server:
        yield server.url


def asked(
    url: str, path: str, opens: str | None = None, form: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage]:
    """Return status and headers of a response. Redirects are not followed."""
    parts = urllib.parse.urlsplit(url)
    headers = {"Origin": url} | (basic(opens) if opens else {})
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    with closing(http.client.HTTPConnection(parts.netloc, timeout=120)) as connection:
        body = urllib.parse.urlencode(form) if form is not None else None
        connection.request("GET" if form is None else "POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers


def test_every_page_requires_the_login(viewer: str, runs: Path) -> None:
    for path in ("/", "/trajectories", "/play", "/static/style.css", "/nowhere"):
        status, headers = asked(viewer, path)
        assert (status, "Basic " in headers.get("WWW-Authenticate", "")) == (401, True), path
        assert asked(viewer, path, "agentgym:wrong")[0] == 401, path
    assert asked(viewer, "/play", form={"environment": "textcraft"})[0] == 401
    assert asked(viewer, "/", login(runs))[0] == 200


@needs_chromium
def test_a_browser_logs_in_and_no_other_page_can_frame_the_viewer(
    browser: Browser, viewer: str, runs: Path, tmp_path: Path
) -> None:
    context = browser.new_context(http_credentials=credentials(runs))
    page = context.new_page()
    page.goto(viewer)
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    (tmp_path / "frames.html").write_text(f"<iframe src='{viewer}'></iframe>")
    page.goto((tmp_path / "frames.html").as_uri())
    page.wait_for_timeout(1000)
    assert all(
        frame.get_by_role("heading", name="Runs", exact=True).count() == 0 for frame in page.frames
    )
    context.close()


def test_the_start_prints_the_file_of_the_login_but_not_the_login(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dashboards", "--runs", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
    assert str(login_file(tmp_path)) in lines[1]
    assert login(tmp_path) not in "".join(lines)
    assert re.fullmatch(r"agentgym:.{32}", login_file(tmp_path).read_text())


def _reads(file: Path, results: multiprocessing.SimpleQueue[str]) -> None:
    os.setuid(OTHER_USER)
    try:
        results.put(file.read_text())
    except OSError as refused:
        results.put(type(refused).__name__)


@as_root
def test_another_unix_user_cannot_read_the_login(viewer: str, runs: Path) -> None:
    for folder in (runs, *runs.parents):
        if "pytest-of" in str(folder):
            folder.chmod(0o755)
    fork = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[str] = fork.SimpleQueue()
    process = fork.Process(target=_reads, args=(login_file(runs), results))
    process.start()
    assert results.get() == "PermissionError"
    process.join()


def test_a_foreign_endpoint_gets_no_api_key(viewer: str, runs: Path) -> None:
    _, headers = asked(viewer, "/play", login(runs), {"environment": "textcraft"})
    with listener() as stranger:
        endpoint = {"do": "turn", "agent": "endpoint", "url": stranger.url, "model": "m"}
        assert asked(viewer, headers["Location"], login(runs), endpoint)[0] in (200, 303)
    assert [sent.get("authorization") for sent in stranger.headers] == [None]


def test_no_number_in_an_address_breaks_the_viewer(viewer: str, runs: Path) -> None:
    run, opens = next(path.parent.name for path in runs.glob("*/recipe.yaml")), login(runs)
    names = (
        "page",
        "task",
        "horizon",
        "step_from",
        "step_to",
        "turns_from",
        "turns_to",
        "reward_from",
        "reward_to",
        "temperature",
    )
    for value in HUGE:
        word = urllib.parse.quote(value)
        paths = [f"/trajectories?{name}={word}" for name in names]
        paths += [
            f"/tasks/textcraft/{word}",
            f"/groups/{run}/rollouts/step-000002/{word}",
            f"/figures/{run}/lanes/{word}.json",
        ]
        paths += [
            f"/trajectories/{run}/rollouts/step-000002/{word}/0",
            f"/drawings/{run}/rollouts/step-000002/1/0/{word}",
        ]
        for path in paths:
            assert asked(viewer, path, opens)[0] < 500, path[:200]
        for field in ("task", "turn"):
            path = "/play" if field == "task" else f"/branch/{run}/rollouts/step-000002/1/0"
            form = {"environment": "textcraft", field: value}
            assert asked(viewer, path, opens, form)[0] < 500, (path, value[:30])
    assert asked(viewer, f"/trajectories?page={10**23}", opens)[0] == 400
