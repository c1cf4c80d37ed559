"""Tests of the server's sessions: leases, turns, closing, limits and state keys."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.server import dispatcher
from environments.server.dispatcher import Dispatcher
from tests.support.echo_sessions import Clock, Echo, EchoEpisode, answer, create, make, now


def test_requests_renew_the_lease_and_an_idle_session_expires() -> None:
    world, clock = Echo(), Clock()
    sessions = make(world, clock)
    session = create(sessions, 1, 10.0).session
    assert session is not None
    for turn in range(5):
        clock.now += 9.0
        assert answer(sessions, "step", (session, turn, "a")).status == 200
    clock.now += 11.0
    expired = answer(sessions, "step", (session, 5, "a"))
    assert (expired.status, expired.error and expired.error.type) == (410, "session_ended")
    assert world._open == 0
    assert len(sessions) == 0


def test_the_sweep_finds_exactly_the_sessions_whose_lease_ran_out() -> None:
    world, clock = Echo(), Clock()
    sessions = make(world, clock)
    for lease_s in (5.0, 10.0, 20.0):
        create(sessions, 1, lease_s, numbered=True)
    clock.now = 12.0
    for session in sessions.expired():
        now(sessions.end(session, "expired"))
    assert len(sessions) == world._open == 1


def test_a_world_that_hangs_while_it_closes_a_session_does_not_keep_others_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "SWEEP_S", 0.01)
    hang = threading.Event()

    class HangingEpisode(EchoEpisode):
        def close(self) -> None:
            hang.wait()

    class Hanging(Echo):
        blocking = True

        def create(self) -> EchoEpisode:
            return HangingEpisode(self)

    async def sweep() -> None:
        clock = Clock()
        sessions = make(Hanging(), clock)
        for lease_s in (1.0, 2.0):
            await sessions.create(1, lease_s)
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(Dispatcher(sessions).sweep())
            for left in (1, 0):
                clock.now += 1.5
                while len(sessions) > left:  # noqa: ASYNC110 - the sweep has no event
                    await asyncio.sleep(0.01)
            sweeping.cancel()
        hang.set()

    asyncio.run(sweep())


def test_a_session_in_use_by_a_thread_is_not_swept() -> None:
    clock = Clock()
    sessions = make(clock=clock)
    ref = create(sessions, 1, 5.0).session
    assert ref is not None
    session = sessions.get(ref)
    assert session is not None
    clock.now = 6.0
    assert sessions.expired() == [session]
    session.lock._locked = True
    assert sessions.expired() == []


def test_repeated_turn_gets_the_same_answer_and_is_not_performed_again() -> None:
    sessions = make()
    session = create(sessions, 1, None).session
    assert session is not None
    first = answer(sessions, "step", (session, 0, "a"))
    again = answer(sessions, "step", (session, 0, "a"))
    second = answer(sessions, "step", (session, 1, "b"))
    assert first == again
    assert second.observation == "2: b"


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from("ab")), max_size=30))
def test_turns_are_performed_in_order_and_only_once(
    asked: list[tuple[int, str]],
) -> None:
    sessions = make()
    ref = create(sessions, 1, None).session
    assert ref is not None
    performed: list[str] = []
    for turn, action in asked:
        reply = answer(sessions, "step", (ref, turn, action))
        if turn == len(performed):
            performed.append(action)
            assert reply.status == 200
        elif turn == len(performed) - 1 and action == performed[-1]:
            assert (reply.status, reply.observation) == (200, f"{len(performed)}: {action}")
        else:
            assert reply.status == 409
    session = sessions.get(ref)
    assert session is not None
    assert isinstance(session.environment, EchoEpisode)
    assert session.environment.performed == performed


def test_ended_and_unknown_sessions_get_different_statuses() -> None:
    sessions = make()
    reply = create(sessions, None, None, numbered=True)
    assert answer(sessions, "close", (reply.session,)).status == 200
    assert answer(sessions, "close", (reply.session,)).status == 410
    assert answer(sessions, "close", (reply.number,)).status == 410
    assert reply.number is not None
    for unknown in (
        "",
        "-",
        "abc",
        f"{reply.number:x}-00",
        "ünï-köde",
        f"{reply.number + 1:x}",
        reply.number + 1,
        -1,
        0,
    ):
        assert answer(sessions, "close", (unknown,)).status == 404


def test_session_closed_by_the_key_of_its_create_stays_closed() -> None:
    sessions = make()
    create(sessions, 1, None, "key")
    assert answer(sessions, "close", ("key",)).status == 200
    assert answer(sessions, "close", ("late",)).status == 404
    for key in ("key", "late"):
        refused = answer(sessions, "create", (1, None, key))
        assert (refused.status, refused.error and refused.error.type) == (410, "session_ended")
    assert len(sessions) == 0


def test_session_that_is_closed_while_it_opens_ends_after_it_has_opened() -> None:
    class Slow(Echo):
        def create(self) -> EchoEpisode:
            assert answer(sessions, "close", ("key",)).status == 200
            return super().create()

    world, clock = Slow(), Clock()
    sessions = make(world, clock)
    create(sessions, 1, None, "key")
    clock.now += 0.1
    for session in sessions.expired():
        now(sessions.end(session, "expired"))
    assert len(sessions) == world._open == 0


def test_sessions_of_our_dialect_cannot_be_reached_by_a_number() -> None:
    sessions = make()
    ref = create(sessions, 1, None).session
    assert ref is not None
    session = sessions.get(ref)
    assert session is not None
    assert sessions.get(session.number) is None


def test_sessions_over_the_limit_are_refused_until_one_closes() -> None:
    sessions = make(limit=2)
    first = create(sessions, 1, None).session
    create(sessions, 1, None)
    assert answer(sessions, "create", (1, None, None)).status == 503
    answer(sessions, "close", (first,))
    assert answer(sessions, "create", (1, None, None)).status == 200


def test_a_create_whose_task_does_not_exist_leaves_no_session() -> None:
    world = Echo()
    sessions = make(world)
    reply = answer(sessions, "create", (99, None, None))
    assert (reply.status, reply.error and reply.error.field) == (422, "index")
    assert len(sessions) == world._open == 0


def test_a_session_keeps_a_digest_in_place_of_the_action() -> None:
    sessions = make()
    ref = create(sessions, 1, None).session
    assert ref is not None
    action = "x" * 10_000_000
    assert answer(sessions, "step", (ref, 0, action)).status == 200
    session = sessions.get(ref)
    assert session is not None
    kept = [
        getattr(session, name)
        for name in session.__slots__
        if isinstance(getattr(session, name), str | bytes)
    ]
    assert max(len(value) for value in kept) < 100
    assert answer(sessions, "step", (ref, 0, action + "x")).status == 409


class Keyed(EchoEpisode):
    def state_key(self) -> str:
        return str(sorted(self.performed))


class KeyedEcho(Echo):
    def create(self) -> Keyed:
        self._open += 1
        return Keyed(self)


def test_replies_have_a_digest_of_the_state_if_the_world_has_state_keys() -> None:
    sessions = make(KeyedEcho())
    begun = [answer(sessions, "create", (1, None, None)) for _ in range(2)]
    assert begun[0].state_key == begun[1].state_key != ""
    keys = [
        [
            begun[i].state_key,
            *(
                answer(sessions, "step", (begun[i].session, turn, action)).state_key
                for turn, action in enumerate(actions)
            ),
        ]
        for i, actions in enumerate((("a", "b"), ("b", "a")))
    ]
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]
    assert keys[0][2] == keys[1][2] != keys[0][1]
    assert (
        answer(sessions, "step", (begun[0].session, 1, "b")).state_key == keys[0][2]
    )  # a repeated turn
    assert answer(make(), "create", (1, None, None)).state_key == ""
