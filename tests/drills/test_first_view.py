"""Tests of the script that makes model training the first view of MLflow's page."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

URL = "http://127.0.0.1:5000"
PATHS = ("/", "/version", "/static-files/index.html")
Answers = dict[str, tuple[bytes, int]]


def answers() -> tuple[Answers, Answers]:
    """Return body and declared length at each of `PATHS`, without and with the script."""
    from mlflow.server.fastapi_app import app
    from starlette.testclient import TestClient

    from tasks.provision import first_view

    plain, shown = (
        {
            path: (answer.content, int(answer.headers["content-length"]))
            for path in PATHS
            for answer in [client.get(path)]
        }
        for client in (
            TestClient(app, base_url=URL),
            TestClient(first_view.of_mlflow(app), base_url=URL),
        )
    )
    return plain, shown


@pytest.fixture(scope="module")
def both() -> tuple[Answers, Answers]:
    # MLflow's server imports Flask, after which vLLM cannot start in the same process.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        return apart.submit(answers).result()


def test_first_view_script_is_inserted_at_the_start_of_the_page(
    both: tuple[Answers, Answers],
) -> None:
    (plain, _), (shown, length) = (seen["/"] for seen in both)
    assert length == len(shown)
    head, choice, rest = shown.partition(b'localStorage.setItem("mlflow.workflowType_v1"')
    assert choice
    assert head.endswith(b"===null)")
    script = shown[shown.index(b"<script>") : shown.index(b"</script>") + len(b"</script>")]
    assert shown.replace(script, b"", 1) == plain
    assert b"<script" in rest


def test_other_answers_are_unchanged(both: tuple[Answers, Answers]) -> None:
    plain, shown = both
    assert shown["/version"] == plain["/version"]
    assert b"workflowType_v1" not in shown["/static-files/index.html"][0]
