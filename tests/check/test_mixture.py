"""Tests of mixtures of worlds: names, weighted task lists, sessions, and metrics by world."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.mixture import member_of, members, weighted_lists
from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    TaskIndexError,
    World,
    WorldError,
)
from environments.mixture import Mixture
from environments.registry import (
    UnknownWorldError,
    check_name,
    check_task_list,
    image_of,
    load_world,
)
from environments.task_lists import UnknownTaskListError
from tasks.evaluation.baselines import NEEDS, baselines
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.training.step_metrics import metrics_by_world

BOTH = "textcraft+searchqa"


class Listed(World):
    """A world that has a task list but no environment."""

    instruction, version = "Play.", "1"

    def __init__(self, name: str, size: int, **attributes: object) -> None:
        self.name, self._size = name, size
        for attribute, value in attributes.items():
            setattr(self, attribute, value)

    @property
    def lists(self) -> dict[str, range]:
        return {"all": range(self._size)}

    def create(self) -> Environment:
        raise NotImplementedError


@given(st.lists(st.integers(1, 60), min_size=2, max_size=4), st.data())
def test_mixed_list_follows_the_weights_and_repeats_no_task(
    sizes: list[int], data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes)))
    worlds = [Listed(f"w{k}", size) for k, size in enumerate(sizes)]
    mixture = Mixture("+".join(world.name for world in worlds), worlds)
    tasks = mixture.tasks("+".join(f"{weight}*all" for weight in weights))
    assert len(set(tasks)) == len(tasks)
    held = Counter(mixture.tag(index) for index in tasks)
    unit = min(size / weight for size, weight in zip(sizes, weights, strict=True))
    for world, weight in zip(worlds, weights, strict=True):
        assert held[world.name] == min(world._size, max(1, round(unit * weight)))
    for index in tasks:
        name, own = member_of(mixture.name, index)
        assert own < next(world._size for world in worlds if world.name == name)


def test_first_tasks_of_a_mixed_list_follow_the_weights() -> None:
    """Check a prefix of the list, because a recipe may use only the first N tasks."""
    mixture = load_world(BOTH)
    first = mixture.tasks("one-command-train+2*islands-train")[:300]
    held = Counter(member_of(BOTH, index)[0] for index in first)
    assert held == {"textcraft": 100, "searchqa": 200}


@pytest.mark.parametrize("world", members(BOTH))
def test_tasks_of_a_mixture_play_as_in_their_own_world(world: str) -> None:
    mixture, alone = load_world(BOTH), load_world(world)
    session, own = mixture.create(), alone.create()
    for index in [each for each in mixture.tasks("validation") if mixture.tag(each) == world][:5]:
        name, of_world = member_of(BOTH, index)
        assert (name, session.reset(index)) == (world, own.reset(of_world))
        assert list(session.valid_actions()) == list(own.valid_actions())
        done = False
        while not done:
            action = session.oracle_action()
            assert action == own.oracle_action()
            step = session.step(action)
            assert step == own.step(action)
            done = step.done


def test_scripted_policies_play_a_mixture(tmp_path: Path) -> None:
    mixture = load_world(BOTH)
    tasks, train = (
        mixture.tasks("one-command-validation+islands-validation")[:8],
        mixture.tasks("one-command-train+islands-train")[:40],
    )
    found = baselines(BOTH, tasks, train, 8, tmp_path)
    assert set(found) == set(NEEDS)
    assert found["oracle"].success.value == 1


def test_a_world_of_another_package_is_mixed_under_its_recipe_name() -> None:
    """Check the name, because environment servers are identified by it too."""
    name = "textcraft+environments.searchqa.world:SearchQA"
    check_name(name)
    mixture = load_world(name)
    assert (mixture.name, mixture.version) == (name, load_world(BOTH).version)
    assert mixture.tag(1) == "environments.searchqa.world:SearchQA"


def test_a_session_plays_one_world_after_another() -> None:
    session = load_world(BOTH).create()
    with pytest.raises(EpisodeOverError):
        session.step("inventory")
    with pytest.raises(OracleError):
        session.oracle_action()
    with pytest.raises(TaskIndexError):
        session.reset(-1)
    begun = [session.reset(index) for index in (0, 1, 2, 1)]
    assert begun[1] == begun[3]
    assert "Crafting commands" in begun[0]
    session.close()
    session.close()


@pytest.mark.parametrize(
    "wrong", ["train+train+train", "0*train+train", "train+", "2x*train+train", "train +train"]
)
def test_a_mixed_list_without_one_list_per_world_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(KeyError, match=r"textcraft, searchqa.*train\+train"):
        weighted_lists(BOTH, wrong)


def test_a_wrong_list_or_world_is_named_before_anything_is_built() -> None:
    with pytest.raises(UnknownTaskListError) as unknown:
        check_task_list(BOTH, "one-command-train+islands-trian")
    assert (unknown.value.world, unknown.value.name, unknown.value.nearest) == (
        "searchqa",
        "islands-trian",
        "islands-train",
    )
    with pytest.raises(UnknownWorldError, match="'searchqa'"):
        check_name("textcraft+serchqa")
    check_task_list(BOTH, "train")


def test_a_mixture_inherits_the_limits_of_its_worlds() -> None:
    worlds = [
        Listed("a", 3, blocking=True, max_sessions=9),
        Listed("b", 3, max_sessions=4, oracle_recovers=False),
    ]
    mixture = Mixture("+".join(world.name for world in worlds), worlds)
    assert (mixture.blocking, mixture.max_sessions, mixture.oracle_recovers) == (True, 4, False)
    assert image_of("textcraft+sciworld") == "java"
    with pytest.raises(WorldError, match=r"sciworld.*webarena.*browser.*java"):
        image_of("sciworld+webarena")
    with pytest.raises(WorldError, match=r"a\+b.*0\.5, 1\.0"):
        Mixture("a+b", [Listed("a", 3), Listed("b", 3, success_score=0.5)])


def test_training_metrics_cover_each_world_of_a_mixture() -> None:
    def played(task: int, outcome: Outcome) -> Trajectory:
        return Trajectory(BOTH, task, 0, 0, 0, 8, 0, "", outcome=outcome)

    batch = [played(0, Outcome.SUCCESS), played(2, Outcome.TRUNCATED), played(5, Outcome.TRUNCATED)]
    measured = metrics_by_world(batch)
    assert (measured["rollout/episodes_textcraft"], measured["rollout/episodes_searchqa"]) == (2, 1)
    assert (measured["rollout/success_textcraft"], measured["rollout/success_searchqa"]) == (0.5, 0)
    assert "rollout/success_searchqa" not in metrics_by_world(batch[:2])
    assert metrics_by_world([Trajectory("textcraft", 3, 0, 0, 0, 8, 0, "")]) == {}


def test_reward_range_of_a_mixture_covers_all_its_worlds() -> None:
    worlds = [Listed("a", 3), Listed("b", 3, reward_range=(-2.0, 0.5))]
    assert Mixture("a+b", worlds).reward_range == (-2.0, 1.0)  # type: ignore[arg-type]
