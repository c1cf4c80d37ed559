"""Run a command, and end it with all its descendants when the owner process is gone.

    python subreaper.py OWNER_PID COMMAND [ARGUMENT ...]

A process between owner and command is the only mechanism that works in every case. A death signal
(PR_SET_PDEATHSIG) set by the command itself has three faults:
- It already fires when the *thread* that started the command ends.
- It does not reach the command's own children.
- Setting it between fork and exec in a process with many threads risks a deadlock.

This process has one thread and uses about twelve megabytes. It needs only the standard library and
is started as a fresh program.

- If the owner dies, everything here is killed at once.
- If the command ends, its remaining descendants are killed, and its exit status becomes ours.
- If this process is killed, the command is killed by its own death signal. Its children are killed
  by the process that started us, or by the next sweep.
- SIGTERM, SIGINT and SIGHUP are passed on to the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OWNER_ENDED = signal.SIGUSR1
CHECK_S = 1.0


def main(owner: int, command: list[str]) -> int:
    """Run the command and wait for it.

    Returns:
        The command's exit status, 128 + n if signal n ended it, 127 if it could not be started.
    """
    prctl = ctypes.CDLL(None).prctl
    passed_on = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    awaited = {signal.SIGCHLD, OWNER_ENDED} | passed_on
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # Orphans of the command's children become our children, so that they can be found.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, int(OWNER_ENDED))
    me = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        # Python ignores them, and the command would inherit that.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        if os.getppid() != me:
            os._exit(1)
        try:
            os.execvp(command[0], command)
        except OSError as missing:
            os.write(2, f"cannot start {command[0]}: {missing.strerror}\n".encode())
            os._exit(127)
    while True:
        # The signal alone is no proof: it also comes when the thread of the owner that started us
        # ends.
        if os.getppid() != owner:
            _kill_descendants()
            os.killpg(0, signal.SIGKILL)
        status = _reap(child)
        if status is not None:
            _kill_descendants()
            return status
        received = signal.sigtimedwait(awaited, CHECK_S)
        if received is not None and received.si_signo in passed_on:
            os.kill(child, received.si_signo)


def _reap(child: int) -> int | None:
    """Reap all ended children, and return the command's exit status if it was among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_descendants() -> None:
    """Kill descendants until none is left, because a dying one may still start another."""
    for _ in range(20):
        found = _descendants()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _descendants() -> list[int]:
    """Return the running descendants of this process."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(entry)] = int(parent)
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        if not more:
            return sorted(found - {os.getpid()})
        found |= more


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
