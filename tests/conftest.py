"""What holds for all tests: a world of their own on disk, fast ones first, skips that say why."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import hypothesis
import pytest

from tasks.provision.local import LocalServer
from tasks.tracking.shared_storage import SharedStorage, opened
from tests.support.counting_servers import Serve, counting
from tests.support.processes import started
from tests.support.s3_server import BUCKET, StorageProxy, credentials, s3_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

gc.set_threshold(50_000)  # else collections take a twentieth of the time
# Set before anything imports Prefect or MLflow, which read them once. Whatever services the user
# has running stay out of it.
_home = Path(tempfile.mkdtemp(prefix="agentgym-tests-"))
for name in [name for name in os.environ if name.startswith(("AGENTGYM_", "PREFECT_", "MLFLOW_"))]:
    del os.environ[name]
if (
    "SUITE_FOLDER" not in os.environ
):  # the processes of pytest-xdist have it from the one that starts them
    os.environ["SUITE_FOLDER"] = str(_home)
    _reaper = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("support") / "reaper.py"),
            str(os.getpid()),
            str(_home),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a pipe that pytest writes to would stay open
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C does not reach it
    )
    _reaper.returncode = (
        0  # it outlives this process on purpose, so Python must not warn that it still runs
    )
os.environ.update(
    # Engines of tiny policies: a virtual machine takes up to 3 s of CPU time to provide 1 GiB.
    AGENTGYM_ENGINE_CPU_CACHE_GB="0.1",
    AGENTGYM_RUNS=str(_home / "runs"),
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    # Each of SciWorld's simulators would compile for 8 s while a test waits.
    JDK_JAVA_OPTIONS="-Dsimulator.practice=4 -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # As many processes compute at once as there are processors; a thread that spins while it waits
    # takes from another test's.
    KMP_BLOCKTIME="0",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_TRACKING_URI=f"sqlite:///{_home}/mlflow.db",
    OMP_WAIT_POLICY="PASSIVE",
    PREFECT_HOME=str(_home / "prefect"),
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="90",
    # Without it Ray, which vLLM imports too, takes 127.0.0.1 for the machine's outer address, once
    # for each process.
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    VLLM_NO_USAGE_STATS="1",
)

# A shell's background job ignores Ctrl-C, and every process that a test starts and interrupts would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asserts on time: this machine may be slow.
hypothesis.settings.register_profile("agentgym", deadline=None, print_blob=True)
hypothesis.settings.load_profile("agentgym")


MAY_BE_SKIPPED = ("gpu", "docker", "processor", "registry", "root")
"""Marks of tests that not every machine can run.

Any other skip is a package that is missing, and would make a green run that hides it.
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not any(item.get_closest_marker(mark) for mark in MAY_BE_SKIPPED):
        _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\nWith CI=true a skipped test fails, or a green run would hide that it was not run."


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random policy; nobody writes into it."""
    from tests.support.tiny_policy import build_tiny_policy  # torch, for those who need it

    return build_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(autouse=True, scope="module")
def _tokens_end_with_the_file() -> Iterator[None]:
    """Removes the tokens that servers of a file drew, which servers of the next file would demand."""
    yield
    for name in ("AGENTGYM_ENVIRONMENT_TOKEN", "ENVIRONMENT_TOKEN_DRAWN", "AGENTGYM_ENGINE_TOKEN"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provision")


@pytest.fixture(scope="module")
def counting_server(state_dir: Path) -> Iterator[str]:
    """The URL of a server of the counting world that no test harms; what one file leaves open is not another's."""
    with started(counting(state_dir, "counting")) as server:
        yield server.url


@pytest.fixture
def serve(state_dir: Path) -> Iterator[Serve]:
    """Starts servers of a test's own: serve(world, *options)."""
    servers: list[LocalServer] = []

    def start(world: str = "counting", *options: str, port: int | None = None) -> LocalServer:
        servers.append(counting(state_dir, world, *options, port=port))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageProxy]:
    """The way of this process to the server."""
    proxy = StorageProxy(s3_address)
    for name, value in credentials(proxy.address).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture(params=["folder", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    """A shared storage of each kind."""
    if request.param == "s3":
        request.getfixturevalue("proxy")
    (tmp_path / "stored").mkdir()
    url = {
        "folder": f"file://{tmp_path}/stored",
        "memory": f"memory://{tmp_path.name}",
        "s3": f"s3://{BUCKET}/{tmp_path.name}",
    }[request.param]
    made = opened(url)
    assert made is not None
    return made


@pytest.fixture
def of_s3(proxy: StorageProxy, tmp_path: Path) -> SharedStorage:
    """One whose way can be cut."""
    return SharedStorage(f"s3://{BUCKET}/{tmp_path.name}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the pages of a file."""
    from playwright.sync_api import sync_playwright

    from environments.webarena.browser import find_chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_chromium()), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


def pytest_unconfigure() -> None:
    shutil.rmtree(_home, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("docker") and (why := _no_container_engine()):
            item.add_marker(pytest.mark.skip(reason=why))


@functools.cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@functools.cache
def _no_container_engine() -> str | None:
    try:
        docker.from_env(timeout=5).ping()
    except docker.errors.DockerException as problem:
        return f"no container engine answers: {problem}"
    return None
