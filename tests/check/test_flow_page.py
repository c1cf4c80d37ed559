"""A flow run's page in Prefect: links to lasting services only, and small pictures."""

from __future__ import annotations

import base64
import io
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from flows import flow_page
from flows.killed_flow_runs import serves_these_runs
from tasks.evaluation.nights import Night
from tasks.evaluation.nights_picture import draw_nights
from tasks.evaluation.statistics import Estimate
from tasks.provision.services import Addresses

FLOW_RUN = "0b8f1cde-33aa-4c0e-9d4c-0f3f4a4f6a11"
SERVICES = Addresses(
    "http://127.0.0.1:4200",
    "http://127.0.0.1:4200/api",
    "http://127.0.0.1:5000",
    "http://127.0.0.1:5050",
)


@pytest.fixture
def in_a_flow_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path))
    monkeypatch.setattr(
        flow_page.FlowRunContext,
        "get",
        lambda: SimpleNamespace(flow_run=SimpleNamespace(id=FLOW_RUN)),
    )


@pytest.mark.usefixtures("in_a_flow_run")
@pytest.mark.parametrize("url", ["", "http://127.0.0.1:23456/api"])
def test_a_server_that_ends_with_the_run_is_not_linked(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    if url:
        serves_these_runs(url)
    assert flow_page.flow_run_link(tmp_path) is None
    flow_page.link_to_viewer(tmp_path, tmp_path, lambda _: None)
    assert json.loads((tmp_path / "prefect.json").read_text()) == {
        "flow_run": FLOW_RUN,
        "page": None,
    }
    assert flow_page.viewer_link(tmp_path / "quickstart-1", tmp_path) is None


def test_links_use_the_page_addresses_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_MLFLOW_PAGE_URL", "http://127.0.0.1:5001")
    monkeypatch.setenv("AGENTGYM_VIEWER_PAGE_URL", "http://127.0.0.1:5051")
    made: list[str] = []
    monkeypatch.setattr(flow_page, "create_link_artifact", lambda link, **_: made.append(link))
    tracker = SimpleNamespace(
        tracking_uri="http://mlflow:5000", mlflow_id=lambda _: "abc", experiment_id="1"
    )
    flow_page.link_to_mlflow(tracker, "run", tmp_path, lambda _: None)  # type: ignore[arg-type]
    flow_page.link_to_viewer(tmp_path / "quickstart-1", tmp_path, lambda _: None)
    assert made == [
        "http://127.0.0.1:5001/#/experiments/1/runs/abc?workflowType=machine_learning",
        "http://127.0.0.1:5051/runs/quickstart-1",
    ]


@pytest.mark.usefixtures("in_a_flow_run")
def test_prefect_and_viewer_link_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_page, "addresses", lambda _: SERVICES)
    made: list[str] = []
    monkeypatch.setattr(flow_page, "create_link_artifact", lambda link, **_: made.append(link))
    folder = tmp_path / "quickstart-1"
    folder.mkdir()
    flow_page.link_to_viewer(folder, tmp_path, lambda _: None)
    assert made == ["http://127.0.0.1:5050/runs/quickstart-1"]
    assert flow_page.flow_run_link(tmp_path) == f"http://127.0.0.1:4200/runs/flow-run/{FLOW_RUN}"


def test_a_picture_is_below_twelve_kilobytes_and_keeps_its_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = random.Random(5)
    nights = []
    for number in range(30):
        held, tried = (
            Estimate(value, value - 0.08, value + 0.08, 100)
            for value in (draws.uniform(0.1, 0.9), draws.uniform(0.1, 0.9))
        )
        nights.append(
            Night(
                f"2026-01-{number + 1:02}",
                number,
                "/a",
                "/b",
                "better" if number % 5 == 0 else "not better",
                tried,
                held,
            )
        )
    drawn = tmp_path / "nights.png"
    draw_nights(drawn, nights, "Nights of quickstart")
    texts: list[str] = []
    monkeypatch.setattr(flow_page, "create_markdown_artifact", lambda text, **_: texts.append(text))
    flow_page.show_picture(drawn, "nights-history", "Night by night")
    (text,) = texts
    assert len(text) < 12_000
    assert str(drawn) in text
    shown = Image.open(io.BytesIO(base64.b64decode(text.partition("base64,")[2].partition(")")[0])))
    assert shown.size == (750, 375)
    for colour in (
        (0x2A, 0x78, 0xD6),
        (0xC2, 0x41, 0x0C),
        (255, 255, 255),
    ):  # challenger, champion, paper
        assert (
            min(math.dist(colour, found) for _, found in shown.convert("RGB").getcolors(100)) < 40
        )
