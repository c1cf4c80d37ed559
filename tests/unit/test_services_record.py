"""What the supervisor of `make up` writes down, and how it chooses ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tasks.provision import supervisor
from tasks.provision.process import started_at
from tasks.provision.services import Addresses, Record, addresses, write


def test_record_of_a_process_that_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    somewhere = Addresses("http://127.0.0.1:1", "http://127.0.0.1:1/api", "http://127.0.0.1:2")
    assert addresses(tmp_path) is None
    started = started_at(os.getpid())
    assert started is not None
    write(tmp_path, Record(os.getpid(), started, somewhere))
    assert addresses(tmp_path) == somewhere
    write(tmp_path, Record(os.getpid(), started - 1, somewhere))  # another process that had our pid
    assert addresses(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        started = started_at(ended.pid) or 0
    write(tmp_path, Record(ended.pid, started, somewhere))
    assert addresses(tmp_path) is None


def test_taken_port_is_passed_over() -> None:
    port = supervisor._free_port(20_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert supervisor._free_port(port) > port
