"""Settings and fixtures of all tests: a temporary home folder, test order and skips."""

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
from tests.support.prefect_server import prefect_server
from tests.support.processes import started
from tests.support.s3_server import BUCKET, StorageProxy, credentials, s3_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

gc.set_threshold(50_000)  # garbage collection otherwise takes 5 % of the time
# Prefect and MLflow read these variables once, on import. Removing them also keeps the tests away
# from services that the user runs.
_home = Path(tempfile.mkdtemp(prefix="agentgym-tests-"))
for name in [name for name in os.environ if name.startswith(("AGENTGYM_", "PREFECT_", "MLFLOW_"))]:
    del os.environ[name]
if "SUITE_FOLDER" not in os.environ:  # workers of pytest-xdist inherit it from the controller
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
        stdout=subprocess.DEVNULL,  # an inherited pipe would stay open after pytest
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C does not reach it
    )
    # The reaper outlives this process on purpose. This prevents the warning that it still runs.
    _reaper.returncode = 0
os.environ.update(
    # Enough for tiny policies. Allocating 1 GiB costs up to 3 s of CPU time on a virtual machine.
    AGENTGYM_ENGINE_CPU_CACHE_GB="0.1",
    AGENTGYM_RUNS=str(_home / "runs"),
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    # Without this each SciWorld simulator compiles for 8 s before a test can continue.
    JDK_JAVA_OPTIONS="-Dsimulator.practice=4 -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # There is one computing process per CPU. A thread that spins while it waits would slow the
    # other tests down.
    KMP_BLOCKTIME="0",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_TRACKING_URI=f"sqlite:///{_home}/mlflow.db",
    OMP_WAIT_POLICY="PASSIVE",
    PREFECT_HOME=str(_home / "prefect"),
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="90",
    # Without this, Ray replaces 127.0.0.1 with the machine's external address, once per process.
    # vLLM imports Ray as well.
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    VLLM_NO_USAGE_STATS="1",
)

# Background jobs of a shell ignore SIGINT. Processes that tests start and interrupt would inherit
# this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, because the machine may be slow.
hypothesis.settings.register_profile("agentgym", deadline=None, print_blob=True)
hypothesis.settings.load_profile("agentgym")


MAY_BE_SKIPPED = ("gpu", "docker", "processor", "registry", "root")
"""Marks of tests that some machines cannot run.

Any other skip means a missing package and fails in CI.
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
        report.longrepr = (
            f"{reason}\nWith CI=true a skipped test fails, because a passing run would hide that "
            "the test did not run. Install what is missing."
        )


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a tiny random policy and return its folder, which tests must not change."""
    from tests.support.tiny_policy import build_tiny_policy  # imports torch, so only on demand

    return build_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a Prefect server and yield the environment variables of commands that use it."""
    with prefect_server(tmp_path_factory.mktemp("prefect-api")) as started:
        yield started.variables


@pytest.fixture(autouse=True, scope="module")
def _tokens_end_with_the_file() -> Iterator[None]:
    """Remove the tokens that servers generated, so that they do not affect later test files."""
    yield
    for name in ("AGENTGYM_ENVIRONMENT_TOKEN", "ENVIRONMENT_TOKEN_DRAWN", "AGENTGYM_ENGINE_TOKEN"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provision")


@pytest.fixture(scope="module")
def counting_server(state_dir: Path) -> Iterator[str]:
    """Yield the URL of a counting-world server that the tests of one file share."""
    with started(counting(state_dir, "counting")) as server:
        yield server.url


@pytest.fixture
def serve(state_dir: Path) -> Iterator[Serve]:
    """Yield serve(world, *options), which starts a server that ends with the test."""
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
    """Route this process's S3 requests through a proxy that can be closed."""
    proxy = StorageProxy(s3_address)
    for name, value in credentials(proxy.address).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    """Return a shared storage of two kinds. tests/drills/test_s3_storage.py replaces it by S3."""
    (tmp_path / "stored").mkdir()
    made = opened(
        f"file://{tmp_path}/stored" if request.param == "folder" else f"memory://{tmp_path.name}"
    )
    assert made is not None
    return made


@pytest.fixture
def s3_storage(proxy: StorageProxy, tmp_path: Path) -> SharedStorage:
    """Return a shared storage on S3 behind `proxy`, which can cut the connection."""
    return SharedStorage(f"s3://{BUCKET}/{tmp_path.name}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one Chromium for all tests of a file."""
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
        return f"no container engine is available: {problem}"
    return None
