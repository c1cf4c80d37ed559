"""Tests of a user's state files, secrets and folders on a machine that others use too.

Root creates the files of the other user.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs.recipe import load_recipe
from tasks.provision.errors import PrivacyError
from tasks.provision.private_files import (
    OwnedFolder,
    private_folder,
    private_runs,
    read_own,
    state_folder,
    stored_secret,
    sweep_owned,
)
from tasks.provision.process import MARK, ChildProcess, sweep, this_process
from tasks.tracking.run_folder import RunFolder

NOBODY = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's files")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for temporary files that is writable by all users, like /tmp."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def bystander() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a process outside any run, and yield it with the mark that planted files name."""
    mark = f"victim-{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # from now on the kernel shows its environment
        yield process, mark
        process.kill()


def plant(folder: Path, mark: str) -> Path:
    """Write a state file that claims that the owner of the process with this mark is gone."""
    file = folder / "planted.json"
    file.write_text(
        json.dumps(
            {"name": "planted", "mark": mark, "log": "/nowhere", "owner": f"{this_process()}0"}
        )
    )
    return file


def test_state_file_of_the_same_user_is_used(
    temporary: Path, bystander: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = bystander
    plant(private_folder(state_folder()), mark)
    assert sweep() == ["planted"]
    assert process.wait() == -signal.SIGKILL


@as_root
def test_state_file_of_another_user_is_ignored(
    temporary: Path, bystander: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = bystander
    os.chown(plant(private_folder(state_folder()), mark), NOBODY, NOBODY)
    assert sweep() == []
    assert process.poll() is None


@as_root
def test_state_folder_of_another_user_is_refused_by_name(
    temporary: Path, bystander: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = bystander
    folder = state_folder()
    folder.mkdir(mode=0o777)
    plant(folder, mark)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(PrivacyError, match=rf"{folder}.*65534.*TMPDIR"):
        sweep()
    with pytest.raises(PrivacyError, match=str(folder)):
        ChildProcess("ours", [sys.executable, "-c", "pass"]).start()
    assert process.poll() is None


def test_symbolic_link_as_state_folder_is_refused(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    state_folder().symlink_to(temporary / "elsewhere")
    with pytest.raises(PrivacyError, match=str(state_folder())):
        sweep()


def test_file_as_state_folder_is_refused(temporary: Path) -> None:
    state_folder().write_text("")
    with pytest.raises(PrivacyError, match=str(state_folder())):
        sweep()


def test_own_open_folder_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert mode(private_folder(folder)) == 0o700
    assert mode(private_folder(tmp_path / "deep" / "new")) == 0o700


def test_symbolic_link_to_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_own(tmp_path / "file") == "text"
    assert read_own(tmp_path / "link") is None
    assert read_own(tmp_path / "none") is None


def test_pipe_in_place_of_a_file_does_not_block_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_own(tmp_path / "pipe") is None


def test_secret_is_created_once_and_private(tmp_path: Path) -> None:
    secret = stored_secret(tmp_path / "kept" / "login")
    assert len(secret) >= 32
    assert stored_secret(tmp_path / "kept" / "login") == secret
    assert mode(tmp_path / "kept" / "login") == 0o600
    assert stored_secret(tmp_path / "kept" / "other") != secret


def test_secret_is_complete_as_soon_as_its_file_exists(tmp_path: Path) -> None:
    seen = []

    def make() -> str:
        seen.append((tmp_path / "login").exists())
        raise InterruptedError

    with pytest.raises(InterruptedError):
        stored_secret(tmp_path / "login", make)
    assert seen == [False]
    assert stored_secret(tmp_path / "login")


def test_processes_that_create_a_secret_at_once_get_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        others = []

        def make() -> str:
            others.append(pool.submit(stored_secret, tmp_path / "login"))
            return "the first"

        assert stored_secret(tmp_path / "login", make) == "the first"
        assert [other.result() for other in others] == ["the first"]


def test_secret_readable_by_others_is_refused(tmp_path: Path) -> None:
    stored_secret(tmp_path / "login")
    (tmp_path / "login").chmod(0o640)
    with pytest.raises(PrivacyError, match=str(tmp_path / "login")):
        stored_secret(tmp_path / "login")


@as_root
def test_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    stored_secret(tmp_path / "login")
    os.chown(tmp_path / "login", NOBODY, NOBODY)
    with pytest.raises(PrivacyError, match=str(tmp_path / "login")):
        stored_secret(tmp_path / "login")


OWNER = """
import sys, time
from pathlib import Path
from tasks.provision.private_files import OwnedFolder
folder = OwnedFolder("weights-", Path(sys.argv[1]))
(folder.path / "model.safetensors").write_bytes(b"x" * 1000)
print(folder.path, flush=True)
time.sleep(600)
"""


def test_folder_of_a_killed_owner_is_removed_and_of_a_live_owner_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alive,
    ):
        assert killed.stdout is not None
        assert alive.stdout is not None
        left, kept = Path(killed.stdout.readline().strip()), Path(alive.stdout.readline().strip())
        assert sweep_owned("weights-", tmp_path) == []
        killed.kill()
        killed.wait()
        assert (left / "model.safetensors").exists()
        mine = OwnedFolder("weights-", tmp_path)
        assert not left.exists()
        assert (kept / "model.safetensors").exists()
        assert mode(mine.path) == 0o700
        mine.remove()
        mine.remove()
        assert list(tmp_path.iterdir()) == [kept]
        alive.kill()


def test_folder_swept_before_its_lock_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def swept_at_once(prefix: str, dir: Path) -> str:
        made.append(mkdtemp(prefix=prefix, dir=dir))
        if len(made) == 1:
            assert sweep_owned("weights-", dir) == [Path(made[0])]
        return made[-1]

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_once)
    folder = OwnedFolder("weights-", tmp_path)
    assert [str(folder.path)] == made[1:]
    folder.remove()


def test_folder_of_another_machine_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{platform.node()}-2"  # starts with the name of this machine
    with monkeypatch.context() as other:
        other.setattr(platform, "node", lambda: name)
        folder = OwnedFolder("weights-", tmp_path)
    os.close(folder._lock)  # on NFS, locks of other machines do not count here
    folder._lock = -1
    assert sweep_owned("weights-", tmp_path) == []
    assert folder.path.is_dir()


@as_root
def test_folder_of_another_user_is_not_swept(tmp_path: Path) -> None:
    foreign = tmp_path / f"weights-{platform.node()}_theirs"
    foreign.mkdir()
    os.chown(foreign, NOBODY, NOBODY)
    assert sweep_owned("weights-", tmp_path) == []
    assert foreign.is_dir()


def test_runs_folder_is_created_private_and_an_open_one_is_closed(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        assert mode(private_runs(tmp_path / "new" / "runs")) == 0o700
    finally:
        os.umask(umask)
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o755)
    assert mode(private_runs(opened)) == 0o700


@as_root
def test_shared_runs_folder_is_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, owner, bits in (
        ("theirs", NOBODY, 0o755),
        ("sticky", 0, 0o1777),
        ("mixed", 0, 0o755),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").write_text("")
        os.chown(folder, owner, owner)
        os.chown(folder / "file", NOBODY, NOBODY)
        folder.chmod(bits)
        caplog.clear()
        assert mode(private_runs(folder)) == bits
        assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_run_makes_its_runs_folder_private(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", load_recipe("textcraft", {}))
    with folder.claimed():
        assert mode(tmp_path / "runs") == 0o700
