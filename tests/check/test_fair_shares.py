"""Who gets a place when a server is full."""

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


def held(sessions: Sessions) -> Counter[str]:
    return Counter(sessions._shares._by_client)


def full_of(
    client: str, limit: int = 20, *, used: bool = False
) -> tuple[Sessions, Clock, list[str]]:
    """A server whose sessions are all one client's."""
    clock = Clock()
    sessions = make(clock=clock, limit=limit)
    ids = [create(sessions, client).session or "" for _ in range(limit)]
    if used:
        for id in ids:
            assert answer(sessions, "step", (id, 0, "a")).status == 200
    return sessions, clock, ids


def test_a_lone_client_may_hold_every_session_and_is_then_told_to_wait() -> None:
    sessions, _, ids = full_of(f"{HERE} trainer")
    assert create(sessions, f"{HERE} trainer").status == 503
    assert all(answer(sessions, "observe", (id,)).status == 200 for id in ids)


def test_sessions_taken_and_left_unused_are_given_to_who_has_none_until_shares_are_equal() -> None:
    sessions, _, _ = full_of(f"{HERE} ")
    statuses = [create(sessions, f"{HERE} trainer").status for _ in range(20)]
    assert statuses == [200] * 10 + [503] * 10
    assert held(sessions) == {f"{HERE} ": 10, f"{HERE} trainer": 10}
    assert create(sessions, f"{HERE} ").status == 503


def test_a_session_in_use_is_only_taken_when_it_has_been_silent() -> None:
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


def test_while_a_client_with_fewer_waits_one_with_more_gets_no_new_place() -> None:
    sessions, clock, ids = full_of(f"{HERE} trainer", used=True)
    assert create(sessions, f"{HERE} newcomer").status == 503
    answer(sessions, "close", (ids[0],))
    assert create(sessions, f"{HERE} trainer").status == 503
    assert create(sessions, f"{HERE} newcomer").status == 200
    answer(sessions, "close", (ids[1],))
    again = create(sessions, f"{HERE} trainer")
    assert again.status == 200  # nobody waits any more
    assert answer(sessions, "step", (again.session, 0, "a")).status == 200
    assert create(sessions, f"{HERE} newcomer").status == 503
    answer(sessions, "close", (ids[2],))
    clock.now += WAITING_S + 1
    assert create(sessions, f"{HERE} trainer").status == 200  # it gave up


def test_names_made_up_without_end_do_not_shut_out_another_address() -> None:
    clock = Clock()
    sessions = make(clock=clock, limit=1000)
    for number in range(1000):
        assert create(sessions, f"10.0.0.9 {number}").status == 200
    assert len(held(sessions)) == MOST_NAMES + 1
    assert [create(sessions, f"{HERE} trainer").status for _ in range(501)] == [200] * 500 + [503]


def test_names_made_up_without_end_leave_a_place_to_who_has_none_at_the_same_address() -> None:
    clock = Clock()
    sessions = make(clock=clock, limit=100)
    for number in range(100):
        create(sessions, f"{HERE} {number}")
    assert create(sessions, f"{HERE} trainer").status == 503
    clock.now += UNUSED_S
    assert create(sessions, f"{HERE} trainer").status == 200


def test_clients_without_a_name_take_from_each_other_only_what_is_unused_or_long_silent() -> None:
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


def test_any_order_of_requests_keeps_the_counts_and_the_limit() -> None:
    rng = random.Random(0)
    clock = Clock()
    sessions = make(clock=clock, limit=30)
    ids: list[str] = []
    for _ in range(5000):
        clock.now += rng.random()
        what = rng.random()
        if what < 0.6:
            reply = create(sessions, f"10.0.0.{rng.randrange(3)} {rng.choice(['', 'a', 'b'])}")
            ids += [reply.session] if reply.session else []
        elif ids:
            answer(sessions, "close" if what < 0.7 else "observe", (rng.choice(ids),))
        open_ones = {session.id: session for session in sessions._open.values()}
        assert len(open_ones) == len(sessions) <= 30
        assert held(sessions) == Counter(session.client for session in open_ones.values())
    now(sessions.end_all())
    assert len(sessions) == 0
    assert not held(sessions)
