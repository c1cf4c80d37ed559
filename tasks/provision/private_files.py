"""Folders and secrets that only this user can read or write, on machines with several users."""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks.files import locked, replacing
from tasks.provision.errors import PrivacyError, RunsFolderError

log = logging.getLogger(__name__)


def state_folder() -> Path:
    """Return this user's folder for state files, logs and sockets, below the temporary folder.

    systemd removes XDG_RUNTIME_DIR at logout, while a training run continues.
    """
    return Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}"


def memory_folder() -> Path:
    """Return the folder of files in this machine's memory, or the temporary folder without one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


def private_folder(path: Path) -> Path:
    """Create the folder for this user alone if it does not exist, and return it.

    Raises:
        PrivacyError: The path exists but is not a folder of this user. In a temporary folder any
            user may have created it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PrivacyError(
                f"{path} is not a folder of this user (owner {found.st_uid}, mode "
                f"{stat.filemode(found.st_mode)}). "
                "Remove it, or set TMPDIR to a folder of this user."
            ) from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    return path


def private_runs(runs: Path) -> Path:
    """Create the runs folder for this user alone if it does not exist, and return it.

    An existing folder of this user is closed to others, unless others keep files there. It may be
    shared on purpose, so that is only a warning.

    Raises:
        RunsFolderError: It cannot be created, is not a folder, or this user cannot write to it.
    """
    try:
        runs.parent.mkdir(parents=True, exist_ok=True)
        runs.mkdir(mode=0o700)
    except OSError as problem:
        if not runs.is_dir() or not os.access(runs, os.W_OK | os.X_OK):
            reason = problem.strerror if not runs.is_dir() else "no write permission"
            raise RunsFolderError(
                f"{runs} cannot be used as the runs folder ({reason}). Set AGENTGYM_RUNS to a "
                "folder with write permission."
            ) from None
        found = runs.stat()
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            uid = os.getuid()
            is_own = (
                found.st_uid == uid
                and not mode & stat.S_ISVTX
                and all(each.lstat().st_uid == uid for each in runs.iterdir())
            )
            if is_own:
                runs.chmod(0o700)
                log.warning(
                    "%s was open to other users (mode %04o). Its mode was changed to 0700.",
                    runs,
                    mode,
                )
            else:
                log.warning(
                    "%s is open to other users (mode %04o), who may read its trajectories and "
                    "databases. Set AGENTGYM_RUNS to a private folder.",
                    runs,
                    mode,
                )
    return runs


def read_own(path: Path) -> str | None:
    """Return the text of a regular file of this user, not of a link; None if there is none."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(opened, encoding="utf-8", errors="replace") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return None
        return file.read()


def stored_secret(path: Path, make: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> str:
    """Return the secret in the file; create it for this user alone if the file does not exist.

    Raises:
        PrivacyError: The file is empty, belongs to another user, or is readable by others.
    """
    private_folder(path.parent)
    if not os.path.lexists(path):
        with locked(path.with_name(f".{path.name}.lock")):
            if not os.path.lexists(path):  # otherwise another process was faster
                with replacing(path) as file:
                    os.fchmod(file.fileno(), 0o600)
                    file.write(make().encode())
    found, text = path.lstat(), read_own(path)
    if not text or stat.S_IMODE(found.st_mode) & 0o077:
        raise PrivacyError(
            f"{path} is readable by others, empty, or owned by another user. Remove it, and a "
            "new secret is created."
        )
    return text


class OwnedFolder:
    """A temporary folder of this process.

    If the process is killed, the next process on this machine that creates such a folder removes
    it. A lock on the folder shows that its owner lives. The kernel releases it however the owner
    ends. Unlike process ids, it also works between containers. On NFS it is local to a machine, so
    the name of the folder holds that of the machine.
    """

    def __init__(self, prefix: str, parent: Path) -> None:
        """
        Args:
            prefix: Start of the folder's name, which identifies folders of dead owners.
            parent: Where it is created, e.g. /dev/shm.
        """
        sweep_owned(prefix, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_of_this_machine(prefix), dir=parent))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another process's sweep removed it before it was locked
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.is_dir():  # otherwise a sweep removed it before the lock
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep_owned(prefix: str, parent: Path) -> list[Path]:
    """Remove OwnedFolders of this user's killed processes on this machine. Return their paths."""
    swept = []
    for folder in parent.glob(f"{_of_this_machine(prefix)}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed meanwhile, not a folder, or another user's
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
        except BlockingIOError:
            continue  # its owner is alive
        finally:
            os.close(lock)
    return swept


def _of_this_machine(prefix: str) -> str:
    return f"{prefix}{platform.node()}_"
