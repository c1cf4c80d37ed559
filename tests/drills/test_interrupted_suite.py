"""Tests that an interrupted or killed pytest run leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT
from tests.support.processes import wait_until
from tests.support.reaper import of_suite

SMALL = """
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.s3_server import s3_server

FORGOTTEN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(86_400)"


def test_that_is_interrupted(s3_address: str) -> None:
    subprocess.Popen([sys.executable, "-c", FORGOTTEN], start_new_session=True)
    with s3_server():
        Path(__file__).with_name("suite").write_text(os.environ["SUITE_FOLDER"])
        Path(__file__).with_name("suite").rename(Path(__file__).with_name("started"))
        time.sleep(86_400)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]]
)
def test_no_process_survives_an_interrupted_pytest_run(signals: list[int], tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(SMALL)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        *plugins,
        str(tmp_path / "test_small.py"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "SUITE_FOLDER"}
    suite = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(lambda: (tmp_path / "started").exists() or suite.poll() is not None)
        folder = (tmp_path / "started").read_text()
        assert len(of_suite(folder)) >= 3
        for number in signals:
            suite.send_signal(number)
        suite.wait()
        wait_until(lambda: of_suite(folder) == [])
        wait_until(lambda: not Path(folder).exists())
    finally:
        suite.kill()
