"""Tests of a real server whose memory a hostile client tries to fill."""

from __future__ import annotations

from tests.support.counting_servers import Serve
from tests.support.hostile import Attacker, long_actions, memory_mb, play, unfinished_bodies


def test_actions_have_a_maximum_length_and_are_not_kept_in_memory(serve: Serve) -> None:
    server = serve()
    attacker = Attacker(server.url)
    long_actions(attacker)
    assert attacker.statuses == {200: 41, 422: 40}
    assert memory_mb(server.pid) < 300  # it used to be 959
    play(server.url)


def test_bodies_that_never_end_have_bounded_memory(serve: Serve) -> None:
    server = serve()
    unfinished_bodies(Attacker(server.url), 40)
    assert memory_mb(server.pid) < 400
    play(server.url)


def test_refused_bodies_are_not_kept_in_memory(serve: Serve) -> None:
    server = serve()
    attacker = Attacker(server.url)
    for _ in range(1500):
        with attacker.connect() as connection:
            connection.sendall(
                b"POST /v1/step HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"1\r\nx\r\n" * 10_000
            )
            attacker.answer(connection)
    # Status 0: the connection was reset before the answer was read.
    assert set(attacker.statuses) <= {400, 0}
    assert memory_mb(server.pid) < 130
    play(server.url)
