"""Tests of a flow run's page in Prefect: links to lasting services, and small pictures."""

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
from tasks.evaluation.benchmark import evaluate
from tasks.evaluation.learning_curve import draw_learning_curve
from tasks.provision.services import Addresses
from tasks.rollout.trajectory import Outcome, Trajectory

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
    steps = {
        step: {"rollout/success": draws.uniform(0.1, 0.9), "rollout/horizon": 6 + step // 20}
        for step in range(1, 61)
    }
    played = [
        Trajectory("textcraft", task, 0, 0, 0, 4, 60, "vllm", outcome=outcome)
        for task, outcome in enumerate([Outcome.SUCCESS, Outcome.TRUNCATED] * 10)
    ]
    drawn = tmp_path / "curve.png"
    draw_learning_curve(drawn, steps, [evaluate(played, label="end", step=60, horizon=4)])
    texts: list[str] = []
    monkeypatch.setattr(flow_page, "create_markdown_artifact", lambda text, **_: texts.append(text))
    flow_page.show_picture(drawn, "learning-curve", "Step by step")
    (text,) = texts
    assert len(text) < 12_000
    assert str(drawn) in text
    shown = Image.open(io.BytesIO(base64.b64decode(text.partition("base64,")[2].partition(")")[0])))
    assert shown.size == (750, 420)
    # The colours of training, held-out tasks and the background.
    for colour in ((0x2A, 0x78, 0xD6), (0xC2, 0x41, 0x0C), (255, 255, 255)):
        assert (
            min(math.dist(colour, found) for _, found in shown.convert("RGB").getcolors(100)) < 40
        )
