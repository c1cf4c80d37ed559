"""Tests of server addresses: URLs, and files that hold the current URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.address import present_url, write_address


def test_url_resolves_to_itself() -> None:
    assert present_url("http://10.0.0.1:8000/") == "http://10.0.0.1:8000"


def test_file_resolves_to_its_current_url(tmp_path: Path) -> None:
    address = write_address(tmp_path / "vllm-0", "http://10.0.0.1:8000")
    assert present_url(address) == "http://10.0.0.1:8000"
    assert write_address(tmp_path / "vllm-0", "http://10.0.0.2:8001/") == address
    assert present_url(address, "http://10.0.0.1:8000") == "http://10.0.0.2:8001"


def test_servers_with_dotted_names_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    written = tmp_path / ".mine.world-0.tmp"
    for other in (tmp_path / ".mine.world-1.tmp", tmp_path / "mine.tmp"):
        other.mkdir()  # so that a write to this path fails
    write_address(tmp_path / "mine.world-0", "http://10.0.0.1:8000")
    assert not written.exists()


def test_unreadable_file_resolves_to_the_previous_url(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/none"
    assert present_url(address, "http://10.0.0.1:8000") == "http://10.0.0.1:8000"
    with pytest.raises(FileNotFoundError):
        present_url(address)
