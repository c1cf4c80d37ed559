"""MLflow's page, and nothing else of its server, chooses model training for who has not chosen."""

from __future__ import annotations

from mlflow.server.fastapi_app import app  # the page as MLflow serves it
from starlette.testclient import TestClient

from tasks.provision.mlflow_first_view import ModelTrainingFirst

URL = "http://127.0.0.1:5000"


def test_the_page_begins_with_the_choice_and_is_whole() -> None:
    plain = TestClient(app, base_url=URL).get("/").content
    shown = TestClient(ModelTrainingFirst(app), base_url=URL).get("/")
    assert shown.status_code == 200
    assert int(shown.headers["content-length"]) == len(shown.content)
    head, choice, rest = shown.content.partition(b'localStorage.setItem("mlflow.workflowType_v1"')
    assert choice
    assert head.endswith(b"===null)")
    script = shown.content[shown.content.index(b"<script>") : shown.content.index(b"</script>") + len(b"</script>")]
    assert shown.content.replace(script, b"", 1) == plain
    assert b"<script" in rest


def test_other_answers_pass_as_they_are() -> None:
    client = TestClient(ModelTrainingFirst(app), base_url=URL)
    assert client.get("/version").content == TestClient(app, base_url=URL).get("/version").content
    assert b"workflowType_v1" not in client.get("/static-files/index.html").content
