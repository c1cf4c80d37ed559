"""Tests of built-in worlds' sessions before a reset, after the end and after a failed reset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    TaskIndexError,
    World,
)
from environments.registry import load_world


@pytest.fixture(scope="module", params=["babyai", "searchqa", "textcraft"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = load_world(request.param)
    yield made
    made.close()


@pytest.fixture
def tasks(world: World) -> Sequence[int]:
    """Return tasks that the expert solves in a few turns."""
    return world.tasks("find-test" if world.name == "sciworld" else "test")


def _refuses_actions(session: Environment) -> None:
    with pytest.raises(EpisodeOverError):
        session.step("look around")
    with pytest.raises(OracleError):
        session.oracle_action()


def test_a_session_without_an_episode_refuses_actions(world: World, tasks: Sequence[int]) -> None:
    session = world.create()
    _refuses_actions(session)
    session.reset(tasks[0])
    while not session.step(session.oracle_action()).done:
        pass
    _refuses_actions(session)
    session.reset(tasks[0])
    session.close()
    session.close()
    _refuses_actions(session)


def test_unknown_task_is_refused_and_keeps_the_episode(world: World, tasks: Sequence[int]) -> None:
    session, undisturbed = world.create(), world.create()
    task = tasks[-1]
    assert session.reset(task) == undisturbed.reset(task)
    for index in (-1, 10**30):
        assert session.step(session.oracle_action()) == undisturbed.step(
            undisturbed.oracle_action()
        )
        with pytest.raises(TaskIndexError):
            session.reset(index)
    step = session.step(session.oracle_action())
    assert step == undisturbed.step(undisturbed.oracle_action())
    session.close()
    undisturbed.close()


def test_reset_discards_the_previous_episode(world: World, tasks: Sequence[int]) -> None:
    session, fresh = world.create(), world.create()
    first, task = tasks[-1], tasks[0]
    session.reset(first)
    session.step(session.oracle_action())
    assert session.reset(task) == fresh.reset(task)
    done = False
    while not done:
        action = fresh.oracle_action()
        assert session.oracle_action() == action
        step = fresh.step(action)
        assert session.step(action) == step
        done = step.done
    session.close()
    fresh.close()
