"""Addresses of servers that may move."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.address import present_url, write_address


def test_a_url_stands_for_itself() -> None:
    assert present_url("http://10.0.0.1:8000/") == "http://10.0.0.1:8000"


def test_a_file_stands_for_the_url_that_it_holds_now(tmp_path: Path) -> None:
    address = write_address(tmp_path / "vllm-0", "http://10.0.0.1:8000")
    assert present_url(address) == "http://10.0.0.1:8000"
    assert write_address(tmp_path / "vllm-0", "http://10.0.0.2:8001/") == address
    assert present_url(address, "http://10.0.0.1:8000") == "http://10.0.0.2:8001"


def test_servers_of_a_dotted_name_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    written = tmp_path / ".mine.world-0.tmp"
    for other in (tmp_path / ".mine.world-1.tmp", tmp_path / "mine.tmp"):
        other.mkdir()  # so that writing it fails
    write_address(tmp_path / "mine.world-0", "http://10.0.0.1:8000")
    assert not written.exists()


def test_while_the_file_cannot_be_read_the_former_url_stands(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/none"
    assert present_url(address, "http://10.0.0.1:8000") == "http://10.0.0.1:8000"
    with pytest.raises(FileNotFoundError):
        present_url(address)
