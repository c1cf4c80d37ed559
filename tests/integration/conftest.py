"""Real environment servers on real ports, and shared storage, for the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.provision.local import LocalServer
from tasks.tracking.shared_storage import SharedStorage, opened
from tests.support.counting_servers import Serve, counting
from tests.support.s3_server import BUCKET, StorageProxy, credentials, s3_server


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provision")


@pytest.fixture(scope="module")
def counting_server(state_dir: Path) -> Iterator[str]:
    """The URL of a server of the counting world that no test harms; what one file leaves open is not another's."""
    server = counting(state_dir, "counting")
    server.start()
    yield server.url
    server.end()


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
