"""Tests of the pages on real data, followed on small data.

Every ```bash block is run unchanged, in the order of the page.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

from environments.searchqa.settings import Settings
from environments.searchqa.world import SearchQA
from tests.support.chromium import needs_chromium
from tests.support.tiny_searchqa import CORPUS, tiny_e5, write_corpus

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1200.0
pytestmark = pytest.mark.slow
# Number of questions in each published set (docs/searchqa-wikipedia.md). The first two of nq are
# spelled out.
TEST_SIZES = {
    "nq": 3610,
    "triviaqa": 11313,
    "popqa": 14267,
    "hotpotqa": 7405,
    "2wikimultihopqa": 12576,
    "musique": 2417,
    "bamboogle": 125,
}
TRAIN_SIZES = {"nq": 79168, "hotpotqa": 90447}
# Overrides that make the page's training command small enough for two cores. Its task lists are
# unchanged.
SMALL = {
    "policy.dtype": "float32",
    "algorithm.steps": 2,
    "curriculum.horizons": [1, 2],
    "curriculum.every": 1,
    "rollout.tasks_per_step": 2,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 8,
    "rollout.trajectory_tokens": 768,
    "algorithm.entropy_coefficient": 0.01,
    "evaluation.n_tasks": 2,
    "evaluation.horizon": 1,
}


class Reader:
    """A reader who runs the commands of a page in a folder with the required files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SEARCHQA_", "WEBARENA_"))
        }
        self.environment |= {"PYTHONPATH": str(ROOT), "AGENTGYM_RUNS": str(folder / "runs")}
        self._serving: list[subprocess.Popen[bytes]] = []

    def follow(self, block: str) -> str:
        """Run a block and return its output.

        A block that starts a server keeps running, and this waits until the server answers.
        """
        if port := re.search(r" serve \w+ --port (\d+)", block):
            self._serving.append(
                subprocess.Popen(
                    ["bash", "-euc", block],
                    cwd=self.folder,
                    env=self.environment,
                    start_new_session=True,
                )
            )
            _wait_for(f"http://127.0.0.1:{port[1]}/health", self._serving[-1])
            return ""
        done = subprocess.run(
            ["bash", "-euc", block],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def end_servers(self) -> None:
        for server in self._serving:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(PATIENCE_S)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.end_servers()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.3)


def test_commands_of_the_searchqa_page_work(reader: Reader, policy: str) -> None:
    data = reader.folder / "data"
    for name in ("wiki", "sets", "index"):
        (data / name).mkdir(parents=True)
    plain = write_corpus(data / "corpus.jsonl")
    (data / "wiki" / "wiki-18.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    _write_questions(data / "sets" / "test.parquet", TEST_SIZES)
    _write_questions(data / "sets" / "train.parquet", TRAIN_SIZES)
    tiny_e5(data / "e5-base-v2")
    _flat_index(data / "e5-base-v2", data / "index" / "e5_Flat.index")
    outputs = [reader.follow(block) for block in blocks("searchqa-wikipedia.md", "bash")]
    assert len(outputs) == 6
    for name, retriever in {"bm25": "bm25", "e5": "dense", "faiss": "dense"}.items():
        assert (
            json.loads((data / f"wikipedia-{name}" / "library.json").read_text())["retriever"]
            == retriever
        )
    assert "nq-test" in outputs[4]
    assert "stand-ins" not in outputs[4]
    assert "2 successes" in outputs[5], outputs[5]
    (training,) = (
        block for block in blocks("searchqa-wikipedia.md", "sh") if "agentgym train" in block
    )
    small = " ".join(
        f"--{field} '{value}'" for field, value in {"policy.model": policy, **SMALL}.items()
    )
    reader.follow(f"{training.strip()} {small}")
    assert len(list((reader.folder / "runs").glob("*/done/*phase*"))) == 2
    for name in ("e5", "faiss"):
        session = SearchQA(Settings(data=data / f"wikipedia-{name}")).create()
        session.reset(0)
        assert session.step("<search>the capital of peru</search>").observation.count("Doc ") == 3
        assert session.step("<answer>Lima</answer>").reward == 1.0


def _write_questions(path: Path, sizes: dict[str, int]) -> None:
    """Write synthetic questions in the published format, as many as the published sets have."""
    answered = [
        ("what is the capital of peru", ["Lima"]),
        ("what animal lives in the andes", ["llama"]),
    ]
    rows = [("nq", *each) for each in answered]
    rows += [
        (name, f"question {n} of {name}", ["a"])
        for name, size in sizes.items()
        for n in range(size)
    ][len(rows) :]
    pd.DataFrame(rows, columns=("data_source", "question", "golden_answers")).to_parquet(path)


def _flat_index(model: Path, target: Path) -> None:
    import faiss

    from environments.searchqa.retrieval.e5 import E5

    vectors = E5(str(model))([f'passage: "{title}"\n{text}' for title, text in CORPUS])
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(target))


class Site(BaseHTTPRequestHandler):
    """A site whose page greets the name in its cookie, and a judge that accepts any answer."""

    def do_GET(self) -> None:
        who = re.search(r"who=(\w+)", self.headers.get("Cookie", ""))
        self._answer(
            f"<title>Store</title><h1>Hello {who[1] if who else 'stranger'}</h1>", "text/html"
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(
            json.dumps({"choices": [{"message": {"content": "CORRECT"}}]}), "application/json"
        )

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """Yield host and port of one server that stands in for all sites and the judge."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@needs_chromium
def test_commands_of_the_webarena_page_work(reader: Reader, site: str) -> None:
    # The page says to change the addresses.
    written = "".join(blocks("webarena-sites.md", "ini"))
    (reader.folder / "webarena.env").write_text(re.sub(r"sites\.example:\d+", site, written))
    folder = reader.folder / "webarena"
    (folder / "config_files").mkdir(parents=True)
    (folder / ".auth").mkdir()
    fuzzy = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["nothing"]}}
    there = {"eval_types": ["url_match"], "reference_url": "__SHOPPING__"}
    cookie = {
        "name": "who",
        "value": "Emma",
        "domain": "127.0.0.1",
        "path": "/",
        "expires": -1,
        "httpOnly": False,
        "secure": False,
    }
    for index, (name, evaluation) in enumerate(
        (("shopping", fuzzy), ("reddit", there), ("map", there))
    ):
        login = f"./.auth/{name}_state.json"
        (folder / login).write_text(
            json.dumps({"cookies": [cookie | {"sameSite": "Lax"}], "origins": []})
        )
        task = {
            "sites": [name],
            "task_id": index,
            "intent": "Do it",
            "start_url": f"__{name.upper()}__",
            "storage_state": login,
        }
        (folder / "config_files" / f"{index}.json").write_text(
            json.dumps(task | {"eval": evaluation})
        )
    lists, played, _ = (reader.follow(block) for block in blocks("webarena-sites.md", "bash"))
    assert re.search(r"information +1\b", lists)
    assert "stand-ins" not in lists
    assert "heading 'Hello Emma'" in played
    assert "URL: http://onestopmarket.com" in played
    assert "score 1 after 1 actions" in played
    with urllib.request.urlopen("http://127.0.0.1:18042/health", timeout=60) as answer:
        assert json.load(answer)["version"].startswith("files-")


def test_the_pages_warn_of_stand_ins_and_the_readme_links_to_them() -> None:
    readme = (ROOT / "README.md").read_text()
    for page, name in (
        ("searchqa-wikipedia.md", "SEARCHQA_DATA"),
        ("webarena-sites.md", "WEBARENA_TASKS"),
    ):
        text = (ROOT / "docs" / page).read_text()
        assert f"docs/{page}" in readme
        assert "**stand-in**" in text
        assert name in text
    assert "not reset between episodes" in (ROOT / "docs" / "webarena-sites.md").read_text()
