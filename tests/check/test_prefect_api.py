"""Tests of the client of Prefect's API."""

from __future__ import annotations

import socket
import threading

import pytest

from tasks.provision.prefect_api import PrefectApi


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<p>busy</",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"no HTTP\r\n\r\n",
    ],
    ids=["cut", "page", "empty", "no token", "not HTTP"],
)
def test_an_answer_that_is_not_whole_counts_as_no_answer(answer: bytes) -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve).start()
        api = PrefectApi(f"http://127.0.0.1:{server.getsockname()[1]}/api", "user:password")
        with pytest.raises(OSError):  # noqa: PT011 - the documented class
            api.ask("flow_runs/filter", {})
