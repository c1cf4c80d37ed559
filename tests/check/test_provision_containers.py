"""Tests of containers on a real engine. Their image is built offline from this machine's Python."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from configs.infrastructure import InfraSettings
from environments.client import EnvironmentClient
from environments.token import VARIABLE
from tasks.provision.containers import OWNER_LABEL, ContainerServer, connect, sweep
from tasks.provision.environment_servers import environment_replicas
from tasks.provision.errors import LifecycleError, ProvisionError, StartFailedError
from tasks.provision.local import answers
from tests.support.counting_servers import ROOT
from tests.support.processes import run_python, started, wait_until

PATIENCE_S = 120.0
IMAGE = "environment-server-test:latest"
SERVE = ["-m", "environments", "serve", "--host", "0.0.0.0", "--port", "8000"]


def _engine_missing() -> str | None:
    try:
        connect(timeout_s=5).close()
    except ProvisionError as missing:
        return str(missing)
    return None


_MISSING = _engine_missing()
pytestmark = [pytest.mark.docker, pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")]


@pytest.fixture(scope="module", autouse=True)
def token_of_this_file() -> Iterator[None]:
    """Restore the token variable after the tests of this file.

    Starting a container sets a token for this process. Servers of later tests would require it.
    """
    before = os.environ.get(VARIABLE)
    yield
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before


def imported_packages() -> list[Path]:
    """Return the top-level packages and modules in site-packages that the server imports."""
    code = (
        "import sys, uvloop, httptools\n"
        "import uvicorn.protocols.http.httptools_impl, uvicorn.protocols.websockets.websockets_sansio_impl\n"
        "import environments.server.app, environments.server.logs, environments.token\n"
        "from environments.registry import load_world\nload_world('textcraft').create().reset(0)\n"
        "for module in list(sys.modules.values()):\n    print(getattr(module, '__file__', None))"
    )
    site = Path(sysconfig.get_path("purelib"))
    files = [Path(line) for line in run_python(code).splitlines() if line.startswith(str(site))]
    return sorted({site / file.relative_to(site).parts[0] for file in files})


def shared_libraries(files: list[Path]) -> set[Path]:
    listed = subprocess.run(
        ["ldd", *map(str, files)], capture_output=True, text=True, check=False
    ).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def image_archive() -> bytes:
    """Return a tar of a root file system that holds only this Python and the server."""
    python = Path(sys._base_executable)  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {
        "site-packages",
        "test",
        "tests",
        "__pycache__",
        "idlelib",
        "ensurepip",
        "tkinter",
        "lib2to3",
    }
    buffer = io.BytesIO()

    def chosen(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return (
            None
            if left_out & set(Path(member.name).parts) or member.name.endswith(".a")
            else member
        )

    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(python.resolve(), python)
        archive.add(library, filter=chosen)
        for package in imported_packages():
            archive.add(package, f"/srv/{package.name}")
        for our_package in ("configs", "environments"):
            archive.add(ROOT / our_package, f"/srv/{our_package}")
        extensions = [
            *(library / "lib-dynload").glob("*.so"),
            *(file for package in imported_packages() for file in package.rglob("*.so")),
        ]
        for file in shared_libraries([python.resolve(), *extensions]):
            archive.add(file.resolve(), file)
        temporary = tarfile.TarInfo("/tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(temporary)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = connect()
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> Iterator[str]:
    entry = json.dumps([sys._base_executable, *SERVE])  # type: ignore[attr-defined]
    repository, _, tag = IMAGE.partition(":")
    client.api.import_image_from_data(
        image_archive(),
        repository=repository,
        tag=tag,
        changes=[
            "ENV PYTHONPATH=/srv",
            "EXPOSE 8000",
            f"ENTRYPOINT {entry}",
            'CMD ["textcraft", "--no-token"]',
        ],
    )
    yield IMAGE
    client.images.remove(IMAGE, force=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that other users may read. Pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def containers_named(client: docker.DockerClient, name: str) -> list[str]:
    return [
        found.name
        for found in client.containers.list(all=True, filters={"label": f"provision.name={name}"})
    ]


def test_a_container_serves_and_is_removed(client: docker.DockerClient, image: str) -> None:
    with started(ContainerServer("served", image, start_deadline_s=PATIENCE_S)) as server:
        assert answers(f"{server.url}/health")
        assert "serving" in server.log_tail()
        assert len(containers_named(client, "served")) == 1
    assert not answers(f"{server.url}/health")
    assert containers_named(client, "served") == []
    with pytest.raises(LifecycleError):
        server.start()


def test_killed_container_restarts_on_its_port(client: docker.DockerClient, image: str) -> None:
    with environment_replicas(
        "textcraft",
        2,
        infrastructure=InfraSettings(environment_backend="container", environment_image=image),
        start_deadline_s=PATIENCE_S,
    ) as servers:
        [victim] = client.containers.list(filters={"label": "provision.name=textcraft-0"})
        victim.kill()
        wait_until(lambda: servers.restarts == 1 and answers(f"{servers.urls[0]}/health"))
        assert answers(f"{servers.urls[1]}/health")
    assert containers_named(client, "textcraft-0") == containers_named(client, "textcraft-1") == []


def test_container_that_ends_during_its_start_shows_its_log(
    client: docker.DockerClient, image: str
) -> None:
    with pytest.raises(StartFailedError, match="no-such-world"):
        ContainerServer(
            "failing", image, command=["no-such-world"], start_deadline_s=PATIENCE_S
        ).start()
    assert containers_named(client, "failing") == []


def test_missing_image_is_named() -> None:
    with pytest.raises(ProvisionError, match="no-such-image-at-all"):
        ContainerServer("missing", "no-such-image-at-all").start()


ORPHAN = """
import os, sys
from tasks.provision import containers
from tasks.provision.containers import ContainerServer
server = ContainerServer("orphan", sys.argv[1], start_deadline_s=float(sys.argv[2]))
server.start()
print(server.url, flush=True)
if sys.argv[3] == "unwatched":
    containers._watch.kill()
os.kill(os.getpid(), 9)
"""


def orphan_of(image: str, watch: str) -> None:
    """Start a container in a process that is then killed.

    Args:
        image: Image of the container.
        watch: "unwatched" to kill the process that watches over the container too.
    """
    words = [sys.executable, "-c", ORPHAN, image, str(PATIENCE_S), watch]
    killed = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
    )
    assert killed.stdout.startswith("http://"), killed.stderr


def test_container_ends_with_its_killed_owner(client: docker.DockerClient, image: str) -> None:
    orphan_of(image, "watched")
    wait_until(lambda: containers_named(client, "orphan") == [])


def test_containers_of_a_killed_owner_are_swept_by_the_next_start(
    client: docker.DockerClient, image: str
) -> None:
    orphan_of(image, "unwatched")
    kept = ContainerServer("kept", image, start_deadline_s=PATIENCE_S)
    [orphan] = containers_named(client, "orphan")
    kept.start()  # sweeps
    try:
        assert containers_named(client, "orphan") == []
        assert orphan not in sweep(client)
        assert len(containers_named(client, "kept")) == 1
        assert client.containers.list(filters={"label": OWNER_LABEL})
    finally:
        kept.end()


def test_a_container_is_confined(client: docker.DockerClient, image: str) -> None:
    with started(ContainerServer("confined", image, memory="512m", start_deadline_s=PATIENCE_S)):
        [container] = client.containers.list(filters={"label": "provision.name=confined"})

        def run(code: str) -> str:
            return str(container.exec_run([sys._base_executable, "-c", code]).output.decode())  # type: ignore[attr-defined]

        assert run("import os; print(os.getuid(), os.getgid())").split() == ["65534", "65534"]
        assert "Read-only file system" in run("open('/srv/planted', 'w')")
        assert run("open('/tmp/x', 'w').write('y'); print('written')").strip() == "written"
        assert "Operation not permitted" in run("import os; os.chown('/tmp', 0, 0)")
        assert (
            run("print(open('/proc/self/status').read())").count("CapEff:\t0000000000000000") == 1
        )
        assert container.attrs["HostConfig"]["Memory"] == 512 * 2**20


def test_container_gets_world_rules_variables_and_files(
    client: docker.DockerClient, image: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_folder / "planted").write_text("seen")
    monkeypatch.setenv("TEXTCRAFT_DATA", str(open_folder))
    monkeypatch.setenv("TEXTCRAFT_LEVEL", "3")
    with environment_replicas(
        "textcraft", rules="agentgym", backend="container", image=image, start_deadline_s=PATIENCE_S
    ) as servers:
        assert asyncio.run(hosted(servers.urls)) == ("textcraft", "agentgym")
        [container] = client.containers.list(filters={"label": "provision.name=textcraft-0"})
        code = f"import os; print(open('{open_folder}/planted').read(), os.environ['TEXTCRAFT_LEVEL']); open('{open_folder}/planted', 'w')"
        output = container.exec_run([sys._base_executable, "-c", code]).output.decode()  # type: ignore[attr-defined]
    assert "seen 3" in output
    assert "Read-only file system" in output


async def hosted(urls: tuple[str, ...]) -> tuple[str, str]:
    async with EnvironmentClient(urls) as client:
        world = await client.world()
        return world.name, world.rules
