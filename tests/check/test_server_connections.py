"""Tests of HTTP/1.1 requests that are sent to the server byte by byte over raw sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from environments.server.limits import MAX_BODY_BYTES

CREATE = json.dumps({"items": [{"index": 3}]}).encode()


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """Connect to the server with a timeout of 60 seconds."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        yield connection


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """Return a request with a Content-Length header."""
    lines = [f"{method} {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answers(connection: socket.socket, count: int) -> list[tuple[int, dict[str, str], Any]]:
    """Read the next `count` answers in order, and return their status, headers and JSON."""
    stream = connection.makefile("rb")
    found = []
    for _ in range(count):
        status = int(stream.readline().split()[1])
        headers = dict(
            line.decode().strip().lower().split(": ", 1) for line in iter(stream.readline, b"\r\n")
        )
        content = stream.read(int(headers["content-length"]))
        found.append((status, headers, json.loads(content)))
    return found


def test_pipelined_requests_are_answered_in_their_order(counting_server: str) -> None:
    paths = ["/v1/create", "/health", "/v1/create", "/none", "/v1/create", "/v1/create"]
    with connected(counting_server) as connection:
        connection.sendall(
            b"".join(request(path, CREATE if path == "/v1/create" else b"") for path in paths)
        )
        got = answers(connection, len(paths))
    assert [status for status, _, _ in got] == [200, 405, 200, 404, 200, 200]
    assert ["items" in content for _, _, content in got] == [path == "/v1/create" for path in paths]


def test_a_body_may_come_in_many_parts_and_in_chunks(counting_server: str) -> None:
    whole = request("/v1/create", CREATE)
    chunked = b"POST /v1/create HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"".join(b"1\r\n%c\r\n" % byte for byte in CREATE) + b"0\r\n\r\n"
    for sent in (whole, chunked):
        with connected(counting_server) as connection:
            for at in range(0, len(sent), 7):
                connection.sendall(sent[at : at + 7])
            [(status, _, content)] = answers(connection, 1)
        assert (status, content["items"][0]["observation"]) == (200, "Goal: 3.")


def test_a_large_body_may_come_in_thousands_of_chunks(counting_server: str) -> None:
    body = json.dumps({"items": [{"index": 3}] * 8000}).encode()
    parts = [body[at : at + 64] for at in range(0, len(body), 64)]
    assert len(parts) > 1500
    with connected(counting_server) as connection:
        connection.sendall(
            b"POST /v1/create HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        )
        [(status, _, content)] = answers(connection, 1)
    assert (status, len(content["items"])) == (200, 8000)


def test_a_body_in_thousands_of_tiny_chunks_is_refused_before_its_end(counting_server: str) -> None:
    with connected(counting_server) as connection:
        connection.sendall(
            b"POST /v1/create HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(b"1\r\nx\r\n" * 2000)
        [(status, _, content)] = answers(connection, 1)
    assert (status, content["error"]["type"]) == (400, "tiny_chunks")


@pytest.mark.parametrize("path", ["/v1/create?from=here", "/v1/cr%65ate"])
def test_query_or_escape_in_the_path_makes_no_difference(counting_server: str, path: str) -> None:
    with connected(counting_server) as connection:
        connection.sendall(request(path, CREATE))
        assert answers(connection, 1)[0][0] == 200


def test_client_that_expects_100_continue_gets_it(counting_server: str) -> None:
    with connected(counting_server) as connection:
        connection.sendall(
            request("/v1/create", CREATE, "Expect: 100-continue").removesuffix(CREATE)
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(CREATE)
        assert answers(connection, 1)[0][0] == 200


def test_body_over_the_limit_is_refused_before_it_is_sent(counting_server: str) -> None:
    head = f"POST /v1/step HTTP/1.1\r\nHost: h\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    with connected(counting_server) as connection:
        connection.sendall(head.encode())
        [(status, _, content)] = answers(connection, 1)
    assert (status, content["error"]["type"]) == (413, "body_too_large")


def test_chunked_body_over_the_limit_is_refused_and_the_connection_stays_open(
    counting_server: str,
) -> None:
    part = b"%x\r\n%b\r\n" % (2**20, bytes(2**20))
    with connected(counting_server) as connection:
        connection.sendall(
            b"POST /v1/step HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(MAX_BODY_BYTES // 2**20 + 2):
            connection.sendall(part)
        connection.sendall(b"0\r\n\r\n" + request("/v1/create", CREATE))
        got = answers(connection, 2)
    assert [status for status, _, _ in got] == [413, 200]


def test_other_methods_are_not_allowed(counting_server: str) -> None:
    with connected(counting_server) as connection:
        connection.sendall(
            request("/v1/step", b"", method="GET") + request("/v1/step", b"", method="PUT")
        )
        got = answers(connection, 2)
    assert [(status, content["error"]["type"]) for status, _, content in got] == [
        (405, "not_allowed")
    ] * 2
    with connected(counting_server) as connection:
        connection.sendall(request("/v1/step", b"", "Connection: close", method="HEAD"))
        head, _, content = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert content == b""


@pytest.mark.parametrize(
    ("version", "header", "closes"),
    [("1.1", "", False), ("1.1", "Connection: close\r\n", True), ("1.0", "", True)],
)
def test_connection_closes_if_the_client_asks_for_it(
    counting_server: str, version: str, header: str, closes: bool
) -> None:
    head = f"POST /v1/create HTTP/{version}\r\nHost: h\r\n{header}Content-Length: {len(CREATE)}\r\n\r\n"
    with connected(counting_server) as connection:
        connection.sendall(head.encode() + CREATE)
        [(status, headers, _)] = answers(connection, 1)
        assert (status, headers.get("connection")) == (200, "close" if closes else None)
        if closes:
            assert connection.recv(1) == b""
        else:
            connection.sendall(request("/v1/create", CREATE))
            assert answers(connection, 1)[0][0] == 200


def test_clients_that_disconnect_during_a_request_do_not_affect_others(
    counting_server: str,
) -> None:
    whole = request("/v1/create", CREATE)
    for length in range(1, len(whole), 5):
        with connected(counting_server) as connection:
            connection.sendall(whole[:length])
    with connected(counting_server) as connection:
        connection.sendall(whole)
        assert answers(connection, 1)[0][0] == 200


def test_bytes_that_are_not_http_get_status_400(counting_server: str) -> None:
    with connected(counting_server) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
