"""A supervised child process of any kind, such as a server or a trainer.

It never outlives its owner, whichever process is killed. Three mechanisms back each other up:
- `end` ends the process and its descendants.
- The subreaper between owner and command does so when the owner is gone (see subreaper.py).
- `sweep` runs before new processes are started. It finds processes of dead owners by a mark that
  every descendant inherits.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import psutil

from tasks.files import replace_file
from tasks.provision.errors import LifecycleError, StartFailedError, StartTimeoutError
from tasks.provision.private_files import private_folder, read_own, state_folder

SUBREAPER = Path(__file__).with_name("subreaper.py")
MARK = "PROVISIONED_AS"
ROOT = Path(__file__).resolve().parents[2]
"""Folder that this project is imported from."""
LOG_AGE_S = 7 * 86_400.0
POLL_S = 0.02


class ChildProcess:
    """One execution of a command, in its own session and with its own log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        state_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log_path: Path | None = None,
    ) -> None:
        """
        Args:
            name: Part of the names of log and state file, for people.
            command: The program and its arguments.
            state_dir: Folder of the state file, and of the log unless `log_path` is given.
            environment: Variables of the process in addition to those of this process.
            cwd: Its working directory, by default this process's.
            log_path: File to which stdout and stderr are appended, by default a new file.
        """
        self.name = name
        self.command = list(command)
        self._mark = f"{name}-{uuid.uuid4().hex[:12]}"
        self._state_dir = state_dir or state_folder()
        self._state_file = self._state_dir / f"{self._mark}.json"
        self.log_path = (log_path or self._state_dir / f"{self._mark}.log").absolute()
        self._environment = dict(environment or {})
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the subreaper. The command and its children are its descendants."""
        if self._process is None:
            raise LifecycleError(f"{self.name} has not been started")
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The command's exit status, or None while running.

        128 + n if signal n ended it, or -9 if the subreaper was killed.
        """
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the command without waiting for it. May be called from any thread.

        Raises:
            LifecycleError: It was started before.
            PrivacyError: The folder for state files belongs to another user.
        """
        if self._process is not None:
            raise LifecycleError(
                f"{self.name} was already started. Create a new ChildProcess for each start."
            )
        private_folder(self._state_dir)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # The state file is written first, so that a sweep can never miss the process.
        state = {
            "name": self.name,
            "mark": self._mark,
            "log": str(self.log_path),
            "owner": this_process(),
        }
        replace_file(self._state_file, json.dumps(state))
        with self.log_path.open("ab") as log:
            # The child gets its own log. If it held this process's stdout, a reader of that would
            # keep waiting after this process has ended.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment, MARK: self._mark},
                cwd=self._cwd,
                start_new_session=True,
                umask=0o077,  # its sockets and files are private to this user
            )

    def alive(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises:
            TimeoutError: It is still running after `timeout_s` seconds.
        """
        if self._process is None:
            raise LifecycleError(f"{self.name} has not been started")
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} is still running after {timeout_s} s") from None
        self.end()
        return status

    def wait_until(self, ready: Callable[[], bool], deadline_s: float) -> None:
        """Wait until `ready()` returns True; end the process if it does not.

        Raises:
            ProvisionError: The process ended, or was not ready after `deadline_s` seconds.
        """
        deadline = time.monotonic() + deadline_s
        pause_s = POLL_S
        while self.alive():
            if ready():
                return
            if time.monotonic() > deadline:
                self.end()
                raise StartTimeoutError(
                    f"{self.name} was not ready after {deadline_s:g} s. Last lines of "
                    f"{self.log_path}:\n{self.log_tail()}"
                )
            time.sleep(pause_s)
            pause_s = min(0.5, pause_s * 1.3)
        failed = StartFailedError(
            f"{self.name} exited with status {self.exit_status} during its start. Last lines of "
            f"{self.log_path}:\n{self.log_tail()}"
        )
        failed.status = self.exit_status
        self.end()
        raise failed

    def end(self, grace_s: float = 1.0) -> None:
        """End the process and its descendants: SIGTERM, then SIGKILL after `grace_s` seconds."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                # The group is killed first, while the subreaper's id cannot belong to another
                # process.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        # A killed subreaper has not ended the command's descendants.
        if process.returncode < 0:
            _kill_marked(self._mark, str(self.log_path))
        self._state_file.unlink(missing_ok=True)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        return last_lines(self.log_path, lines)


def last_lines(file: Path, lines: int = 30) -> str:
    """Return the last lines of a log, or "" if the file does not exist."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def sweep(state_dir: Path | None = None) -> list[str]:
    """Kill remaining processes of dead owners, remove old logs, and return the names killed.

    Call it before starting processes. Several runs can share a folder. Files of other users are
    ignored.

    Raises:
        PrivacyError: The folder belongs to another user.
    """
    directory = private_folder(state_dir or state_folder())
    swept: list[str] = []
    for file in directory.glob("*.json"):
        try:
            state = json.loads(read_own(file) or "")
            name, mark, log, owner = state["name"], state["mark"], state["log"], str(state["owner"])
        except (ValueError, KeyError, TypeError):
            continue  # gone by now, or not a state file of ours
        if is_gone(owner):
            if _kill_marked(mark, log):
                swept.append(name)
            file.unlink(missing_ok=True)
    for log_file in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - log_file.stat().st_mtime > LOG_AGE_S:
                log_file.unlink()
    return swept


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks after boot, or None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def importing(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables with which a process can import this project, from any working directory."""
    path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**(environment or {}), "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, path)))}


@contextlib.contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a `with` block."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def this_process() -> str:
    """Return an identifier of this process: host, boot id, pid namespace, pid and start time."""
    pid = os.getpid()
    return " ".join([*_machine(), str(pid), str(started_at(pid))])


def is_gone(owner: str) -> bool:
    """Return whether a process named by `this_process` has certainly ended.

    False if the process is on another host or in another container, because its state is unknown.
    """
    try:
        host, boot, space, pid, started = owner.split()
        here_host, here_boot, here_space = _machine()
    except ValueError:
        return False
    if host != here_host:
        return False
    if boot != here_boot:
        return True  # the machine was rebooted
    return space == here_space and pid.isdecimal() and str(started_at(int(pid))) != started


@cache
def _machine() -> tuple[str, str, str]:
    """Return host (with the machine id, if there is one), boot id and pid namespace."""
    return (
        f"{platform.node()}/{_text('/etc/machine-id')}",
        boot_id(),
        os.readlink("/proc/self/ns/pid"),
    )


@cache
def boot_id() -> str:
    """Return the id of this machine's boot, which all its containers share."""
    return _text("/proc/sys/kernel/random/boot_id") or platform.node()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _kill_marked(mark: str, log: str) -> int:
    """Kill every process that inherited the mark or the log, and return their number.

    Either suffices. A program that rewrites its title may overwrite its environment, and one that
    redirects its output does not hold the log.
    """
    killed: set[int] = set()
    for _ in range(20):
        found = [
            process
            for process in psutil.process_iter()
            if process.pid != os.getpid() and _is_marked(process, mark, log)
        ]
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                killed.add(process.pid)
        time.sleep(POLL_S)
    return len(killed)


def _is_marked(process: psutil.Process, mark: str, log: str) -> bool:
    try:
        if process.environ().get(MARK) == mark:
            return True
        return any(os.readlink(f"/proc/{process.pid}/fd/{stream}") == log for stream in (1, 2))
    except (OSError, psutil.Error):  # it ended, belongs to another user, or has closed its output
        return False
