"""Tests of fair shares: which client gets a session of a full server."""

from __future__ import annotations

import random
from collections import Counter

from environments.protocol import Reply
from environments.server.fair_shares import LONG_SILENT_S, MOST_NAMES, SILENT_S, UNUSED_S, WAITING_S
from environments.server.sessions import Sessions
from tests.support.echo_sessions import Clock, answer, make, now

HERE = "127.0.0.1"


def create(sessions: Sessions, client: str) -> Reply:
    return answer(sessions, "create", (1, 86_400.0, None, False, client))


def sessions_by_client(sessions: Sessions) -> Counter[str]:
    return Counter(sessions._shares._by_client)


def full_of(
    client: str, limit: int = 20, *, used: bool = False
) -> tuple[Sessions, Clock, list[str]]:
    """Return a server whose sessions all belong to one client, its clock and the session ids."""
    clock = Clock()
    sessions = make(clock=clock, limit=limit)
    ids = [create(sessions, client).session or "" for _ in range(limit)]
    if used:
        for id in ids:
            assert answer(sessions, "step", (id, 0, "a")).status == 200
    return sessions, clock, ids


def test_lone_client_may_hold_every_session_and_then_gets_503() -> None:
    sessions, _, ids = full_of(f"{HERE} trainer")
    assert create(sessions, f"{HERE} trainer").status == 503
    assert all(answer(sessions, "observe", (id,)).status == 200 for id in ids)


def test_unused_sessions_go_to_a_new_client_until_shares_are_equal() -> None:
    sessions, _, _ = full_of(f"{HERE} ")
    statuses = [create(sessions, f"{HERE} trainer").status for _ in range(20)]
    assert statuses == [200] * 10 + [503] * 10
    assert sessions_by_client(sessions) == {f"{HERE} ": 10, f"{HERE} trainer": 10}
    assert create(sessions, f"{HERE} ").status == 503


def test_used_session_is_taken_only_after_a_silence() -> None:
    sessions, clock, ids = full_of(f"{HERE} trainer", used=True)
    assert create(sessions, f"{HERE} newcomer").status == 503
    clock.now += SILENT_S
    assert answer(sessions, "step", (ids[0], 1, "b")).status == 200
    assert [create(sessions, f"{HERE} newcomer").status for _ in range(12)] == [200] * 10 + [
        503
    ] * 2
    assert answer(sessions, "step", (ids[0], 2, "c")).status == 200
    gone = answer(sessions, "step", (ids[1], 1, "b"))
    assert (gone.status, gone.error and gone.error.type) == (410, "session_ended")


def test_client_gets_no_new_session_while_one_with_fewer_sessions_waits() -> None:
    sessions, clock, ids = full_of(f"{HERE} trainer", used=True)
    assert create(sessions, f"{HERE} newcomer").status == 503
    answer(sessions, "close", (ids[0],))
    assert create(sessions, f"{HERE} trainer").status == 503
    assert create(sessions, f"{HERE} newcomer").status == 200
    answer(sessions, "close", (ids[1],))
    again = create(sessions, f"{HERE} trainer")
    assert again.status == 200  # no other client is waiting
    assert answer(sessions, "step", (again.session, 0, "a")).status == 200
    assert create(sessions, f"{HERE} newcomer").status == 503
    answer(sessions, "close", (ids[2],))
    clock.now += WAITING_S + 1
    assert create(sessions, f"{HERE} trainer").status == 200  # the newcomer has stopped waiting


def test_address_with_many_names_does_not_block_another_address() -> None:
    clock = Clock()
    sessions = make(clock=clock, limit=1000)
    for number in range(1000):
        assert create(sessions, f"10.0.0.9 {number}").status == 200
    assert len(sessions_by_client(sessions)) == MOST_NAMES + 1
    assert [create(sessions, f"{HERE} trainer").status for _ in range(501)] == [200] * 500 + [503]


def test_many_names_do_not_block_a_new_client_at_the_same_address() -> None:
    clock = Clock()
    sessions = make(clock=clock, limit=100)
    for number in range(100):
        create(sessions, f"{HERE} {number}")
    assert create(sessions, f"{HERE} trainer").status == 503
    clock.now += UNUSED_S
    assert create(sessions, f"{HERE} trainer").status == 200


def test_unnamed_clients_take_only_unused_or_long_silent_sessions_from_each_other() -> None:
    sessions, clock, ids = full_of(f"{HERE} ", limit=4)
    assert answer(sessions, "step", (ids[0], 0, "a")).status == 200
    assert create(sessions, f"{HERE} ").status == 503
    clock.now += UNUSED_S
    assert [create(sessions, f"{HERE} ").status for _ in range(4)] == [200] * 3 + [503]
    assert answer(sessions, "step", (ids[0], 1, "a")).status == 200
    clock.now += LONG_SILENT_S
    for _ in range(4):
        assert create(sessions, f"{HERE} ").status == 200
    assert answer(sessions, "step", (ids[0], 2, "a")).status == 410


def test_random_requests_keep_the_counts_and_the_limit() -> None:
    rng = random.Random(0)
    clock = Clock()
    sessions = make(clock=clock, limit=30)
    ids: list[str] = []
    for _ in range(5000):
        clock.now += rng.random()
        draw = rng.random()
        if draw < 0.6:
            reply = create(sessions, f"10.0.0.{rng.randrange(3)} {rng.choice(['', 'a', 'b'])}")
            ids += [reply.session] if reply.session else []
        elif ids:
            answer(sessions, "close" if draw < 0.7 else "observe", (rng.choice(ids),))
        open_ones = {session.id: session for session in sessions._open.values()}
        assert len(open_ones) == len(sessions) <= 30
        assert sessions_by_client(sessions) == Counter(
            session.client for session in open_ones.values()
        )
    now(sessions.end_all())
    assert len(sessions) == 0
    assert not sessions_by_client(sessions)
