"""Folders and secrets that nobody but this user can write or read, whoever else uses the machine."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks.provision.errors import PrivacyError, RunsFolderError

log = logging.getLogger(__name__)


def state_folder() -> Path:
    """The folder of this user for state files, logs and sockets of processes, below the folder for temporary files.

    Not XDG_RUNTIME_DIR: systemd removes that when the user logs out, and a training run goes on.
    """
    return Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}"


def private_folder(path: Path) -> Path:
    """Makes the folder where there is none, for this user alone, and returns it.

    Raises:
        PrivacyError: Something is there that is not a folder of this user: in a folder for temporary files anybody may have put it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PrivacyError(
                f"{path} is not a folder of yours (user {found.st_uid}, mode {stat.filemode(found.st_mode)}); "
                "remove it, or set TMPDIR to a folder of yours"
            ) from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    return path


def private_runs(runs: Path) -> Path:
    """Makes the folder of the runs where there is none, for this user alone, and returns it.

    An existing folder of this user is closed to others, unless others keep files there. A folder that cannot be closed is
    reported as a warning: someone may share it on purpose.

    Raises:
        RunsFolderError: It cannot be made, is not a folder, or this user cannot write to it.
    """
    try:
        runs.parent.mkdir(parents=True, exist_ok=True)
        runs.mkdir(mode=0o700)
    except OSError as problem:
        if not runs.is_dir() or not os.access(runs, os.W_OK | os.X_OK):
            reason = problem.strerror if not runs.is_dir() else "this user cannot write to it"
            raise RunsFolderError(
                f"{runs} cannot be the folder of the runs ({reason}): set AGENTGYM_RUNS to a folder that you can write to"
            ) from None
        found = runs.stat()
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            uid = os.getuid()
            is_own = found.st_uid == uid and not mode & stat.S_ISVTX and all(each.lstat().st_uid == uid for each in runs.iterdir())
            if is_own:
                runs.chmod(0o700)
                log.warning("%s was open to other users (mode %04o). It is closed to them now: mode 0700", runs, mode)
            else:
                log.warning(
                    "%s is open to other users (mode %04o), who may read trajectories and databases there: "
                    "set AGENTGYM_RUNS to a folder of your own",
                    runs,
                    mode,
                )
    return runs


def read_own(path: Path) -> str | None:
    """The text of a regular file of this user; None where there is none, it is a link, or another user has put it there."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(opened, encoding="utf-8", errors="replace") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return None
        return file.read()


def kept_secret(path: Path, make: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> str:
    """The secret that the file holds; made, and written for this user alone, where there is no such file.

    Raises:
        PrivacyError: The file is not this user's, or others could read it.
    """
    private_folder(path.parent)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        found, text = path.lstat(), read_own(path)
        if not text or stat.S_IMODE(found.st_mode) & 0o077:
            raise PrivacyError(f"{path} could be read by others, is empty or is not yours; remove it, and another secret is made") from None
        return text
    with open(opened, "w", encoding="utf-8") as file:
        secret = make()
        file.write(secret)
    return secret


class OwnedFolder:
    """A folder of this process. If the process is killed, the next one that makes such a folder removes it.

    A lock on the folder says whether its owner lives: the kernel lets it go however the owner ends, and it holds between containers,
    where process ids do not.
    """

    def __init__(self, prefix: str, parent: Path) -> None:
        """
        Args:
            prefix: The folder's name begins so; folders of dead owners are known by it.
            parent: Where it is made, e.g. /dev/shm.
        """
        sweep_owned(prefix, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # a sweep took it for a dead owner's before it could be locked
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.is_dir():  # else a sweep came before the lock
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Removes it with all that is in it. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep_owned(prefix: str, parent: Path) -> list[Path]:
    """Removes what killed processes of this user left of their OwnedFolders; returns what it removed."""
    swept = []
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed meanwhile, or no folder, or another user's
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(lock)
    return swept
