"""Tests of child processes: start, end, logs, exit status, and sweeps after a killed owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tasks.provision.errors import LifecycleError, StartFailedError, StartTimeoutError
from tasks.provision.process import ChildProcess, sweep, this_process
from tests.support.counting_servers import ROOT
from tests.support.processes import ended, wait_until

PATIENCE_S = 60.0

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
print("family complete", flush=True)
time.sleep(600)
"""
"""A command with two children. One has left the process group and has an empty environment."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def family_of(process: ChildProcess) -> list[psutil.Process]:
    """Wait for the command's children, and return the subreaper, the command and its children."""
    process.wait_until(lambda: "family complete" in process.log_tail(), PATIENCE_S)
    subreaper = psutil.Process(process.pid)
    wait_until(lambda: len(subreaper.children(recursive=True)) == 3)
    return [subreaper, *subreaper.children(recursive=True)]


def all_gone(family: list[psutil.Process]) -> bool:
    return all(ended(member) for member in family)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., ChildProcess]]:
    processes: list[ChildProcess] = []

    def start(code: str, **options: object) -> ChildProcess:
        processes.append(ChildProcess("test", python(code), state_dir=tmp_path, **options))  # type: ignore[arg-type]
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.end(0.0)


def test_the_command_has_its_environment_directory_session_and_log(
    started: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    code = (
        "import os, sys; print(os.environ['COLOUR'], os.getcwd(), "
        "os.getsid(0) != int(os.environ['OURS'])); print('err', file=sys.stderr)"
    )
    log_path = tmp_path / "logs" / "mine.log"
    process = started(
        code,
        environment={"COLOUR": "green", "OURS": str(os.getsid(0))},
        cwd=tmp_path,
        log_path=log_path,
    )
    assert process.wait(PATIENCE_S) == 0
    assert sorted(log_path.read_text().splitlines()) == ["err", f"green {tmp_path} True"]
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_exit_status_is_that_of_the_command(
    started: Callable[..., ChildProcess], code: str, status: int
) -> None:
    process = started(code)
    assert process.wait(PATIENCE_S) == status
    assert process.exit_status == status
    assert not process.alive()


def test_missing_command_is_named(tmp_path: Path) -> None:
    process = ChildProcess("test", ["/no/such/program"], state_dir=tmp_path)
    process.start()
    with pytest.raises(StartFailedError, match="/no/such/program") as failed:
        process.wait_until(lambda: False, PATIENCE_S)
    assert failed.value.status == 127


def test_failed_start_shows_the_end_of_the_log(started: Callable[..., ChildProcess]) -> None:
    process = started("print('loading'); raise ValueError('no such model')")
    with pytest.raises(StartFailedError, match=r"(?s)loading.*no such model"):
        process.wait_until(lambda: False, PATIENCE_S)


def test_slow_start_is_ended(started: Callable[..., ChildProcess]) -> None:
    process = started("import time; print('still loading', flush=True); time.sleep(600)")
    wait_until(lambda: "still loading" in process.log_tail())
    with pytest.raises(StartTimeoutError, match="still loading"):
        process.wait_until(lambda: False, 0.1)
    assert not process.alive()


def test_process_starts_only_once(started: Callable[..., ChildProcess]) -> None:
    process = started("pass")
    with pytest.raises(LifecycleError):
        process.start()


def test_end_lets_the_command_finish(started: Callable[..., ChildProcess]) -> None:
    code = """if True:
        import signal, sys, time
        signal.signal(15, lambda *_: (print('goodbye', flush=True), sys.exit(0)))
        print('up', flush=True)
        time.sleep(600)
    """
    process = started(code)
    wait_until(lambda: "up" in process.log_tail())
    process.end(PATIENCE_S)
    assert "goodbye" in process.log_tail()
    assert process.exit_status == 0


def test_end_kills_a_process_that_ignores_sigterm(started: Callable[..., ChildProcess]) -> None:
    process = started(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', "
        "flush=True)\ntime.sleep(600)"
    )
    wait_until(lambda: "up" in process.log_tail())
    process.end(0.2)
    assert not process.alive()


def test_end_leaves_no_descendant(started: Callable[..., ChildProcess]) -> None:
    process = started(FAMILY)
    family = family_of(process)
    process.end()
    assert all_gone(family)


def test_remaining_children_are_killed_after_the_command(
    started: Callable[..., ChildProcess],
) -> None:
    process = started(FAMILY)
    family = family_of(process)
    command = next(member for member in family[1:] if member.ppid() == process.pid)
    command.kill()
    assert process.wait(PATIENCE_S) == 137
    assert all_gone(family)


def test_command_dies_with_a_killed_subreaper_and_end_cleans_up(
    started: Callable[..., ChildProcess],
) -> None:
    process = started(FAMILY)
    family = family_of(process)
    command = next(member for member in family[1:] if member.ppid() == process.pid)
    family[0].kill()
    wait_until(lambda: all_gone([command]))
    assert not process.alive()
    process.end()
    assert all_gone(family)


def test_the_process_outlives_the_thread_that_started_it(
    started: Callable[..., ChildProcess],
) -> None:
    processes: list[ChildProcess] = []
    thread = threading.Thread(
        target=lambda: processes.append(started("import time; time.sleep(600)"))
    )
    thread.start()
    thread.join()
    time.sleep(0.5)  # long enough for a death signal of the thread
    assert processes[0].alive()


OWNER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tasks.provision.process import ChildProcess
process = ChildProcess("owned", [sys.executable, "-c", {family!r}], state_dir=Path({state_dir!r}))
process.start()
process.wait_until(lambda: "family complete" in process.log_tail(), 60)
print(process.pid, flush=True)
time.sleep(600)
"""


def owner(state_dir: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    code = OWNER.format(root=str(ROOT), family=FAMILY, state_dir=str(state_dir))
    process = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    subreaper = psutil.Process(int(process.stdout.readline()))
    wait_until(lambda: len(subreaper.children(recursive=True)) == 3)
    return process, [subreaper, *subreaper.children(recursive=True)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_survives_its_owner(tmp_path: Path, how: signal.Signals) -> None:
    process, family = owner(tmp_path)
    process.send_signal(how)
    process.wait(PATIENCE_S)
    wait_until(lambda: all_gone(family))


def test_sweep_kills_survivors_of_owner_and_subreaper(tmp_path: Path) -> None:
    process, family = owner(tmp_path)
    family[0].suspend()  # so that it cannot act on its owner's death
    process.kill()
    process.wait(PATIENCE_S)
    family[0].kill()
    survivors = [member for member in family if not all_gone([member])]
    assert survivors, "the command's children did not survive the subreaper"
    assert sweep(tmp_path) == ["owned"]
    wait_until(lambda: all_gone(family))
    assert list(tmp_path.glob("*.json")) == []
    assert sweep(tmp_path) == []


def test_sweep_keeps_processes_with_an_owner(
    started: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    process = started("import time; time.sleep(600)")
    assert sweep(tmp_path) == []
    assert process.alive()
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_sweep_recognises_a_reused_process_id(tmp_path: Path) -> None:
    """Sweep a state file whose owner has ended and whose process id now belongs to this process."""
    bystander = subprocess.Popen(python("import time; time.sleep(600)"))
    try:
        state = {
            "name": "old",
            "mark": "old-1",
            "log": str(tmp_path / "old.log"),
            "owner": f"{this_process()}0",
        }
        (tmp_path / "old-1.json").write_text(json.dumps(state))
        assert sweep(tmp_path) == []
        assert not (tmp_path / "old-1.json").exists()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_sweep_ignores_foreign_files(tmp_path: Path) -> None:
    for number, text in enumerate(["", "{", "[]", "{}", '{"owner": 5}']):
        (tmp_path / f"{number}.json").write_text(text)
    assert sweep(tmp_path) == []
    assert sweep(tmp_path / "missing") == []
