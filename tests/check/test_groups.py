"""Tests of learnable groups: failed members and equal rewards."""

from __future__ import annotations

import pytest

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training.groups import learnable_groups, reward_range, zero_variance
from tasks.training.left_out import EpisodesLeftOutError, check_left_out, left_out_warning
from tasks.training.step_metrics import rollout_metrics


def ended(
    group: int,
    member: int,
    outcome: Outcome = Outcome.FINISHED,
    turns: int = 1,
    reward: float = 0.0,
) -> Trajectory:
    made = Trajectory("textcraft", 0, group, member, 0, 4, 0, "vllm", prompt=[1], outcome=outcome)
    made.turns = [Turn([2], [-0.1], "look", reward=reward) for _ in range(turns)]
    return made


BATCH = [
    *(ended(0, 1, reward=1.0), ended(0, 0)),
    *(ended(1, 0), ended(1, 1, Outcome.FAILED)),
    *(ended(2, 0, Outcome.TRUNCATED), ended(2, 1)),
    *(ended(3, 0, Outcome.FAILED), ended(3, 1, Outcome.FAILED)),
    ended(4, 0, Outcome.TRUNCATED),
]


@pytest.mark.parametrize(
    ("complete", "kept", "left_out"),
    [
        (True, [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0)], 2),
        (False, [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (4, 0)], 1),
    ],
)
def test_failed_member_drops_its_group_or_only_itself(
    complete: bool, kept: list[tuple[int, int]], left_out: int
) -> None:
    groups = learnable_groups(BATCH, complete)
    assert [(t.group, t.member) for group in groups.kept for t in group] == kept
    assert groups.left_out == left_out


def test_metrics_count_left_out_groups() -> None:
    metrics = rollout_metrics(BATCH, 4, 1.0, 0, complete_groups=True)
    assert metrics["rollout/groups_left_out"] == 2
    assert metrics["rollout/failed"] == 3


def test_means_over_episodes_leave_out_failed_ones() -> None:
    batch = [
        ended(0, 0, Outcome.SUCCESS, reward=1.0),
        ended(0, 1, Outcome.TRUNCATED, turns=3),
        ended(1, 0, Outcome.FINISHED, turns=2, reward=0.25),
        ended(1, 1, Outcome.FAILED, turns=8, reward=5.0),
    ]
    batch[1].reason = batch[3].reason = "horizon"
    batch[2].turns[0].malformed = True
    for turn in [turn for t in batch for turn in t.turns]:
        turn.policy_version = 1
    found = rollout_metrics(batch, 4, 2.0, 3)
    expected = {
        "success": 1 / 3,
        "reward": 0.5,
        "turns": 2.0,
        "truncated_share": 1 / 3,
        "cut_by_horizon": 1 / 3,
        "malformed_share": 1 / 6,
        "entropy": 0.1,
        "policy_tokens": 6,
        "tokens_per_second": 3.0,
        "staleness_mean": 2.0,
        "episodes": 3,
        "failed": 1,
    }
    assert {name: found[f"rollout/{name}"] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("refused", "share"), [([True, False, None], 0.5), ([None, None], None)])
def test_refused_share_ignores_turns_without_the_flag(
    refused: list[bool | None], share: float | None
) -> None:
    episode = ended(0, 0)
    episode.turns = [Turn([1], [-0.1], "act", refused=each) for each in refused]
    assert rollout_metrics([episode], 4, 1.0, 0).get("rollout/refused_share") == share


def test_a_malformed_turn_repeats_no_action() -> None:
    episode = ended(0, 0)
    episode.turns = [
        *(Turn([1], [-0.1], "act") for _ in range(2)),
        *(Turn([1], [-0.1], "", malformed=True) for _ in range(3)),
    ]
    assert rollout_metrics([episode], 4, 1.0, 0)["rollout/repeated_share"] == 1 / 4


@pytest.mark.parametrize(("complete", "share", "turns"), [(True, 4 / 9, 1.0), (False, 3 / 9, 1.0)])
def test_left_out_share_and_length_are_metrics_of_every_step(
    complete: bool, share: float, turns: float
) -> None:
    metrics = rollout_metrics(BATCH, 4, 1.0, 0, complete_groups=complete)
    assert metrics["rollout/left_out_share"] == pytest.approx(share)
    assert metrics["rollout/left_out_turns"] == turns
    all_kept = rollout_metrics([ended(0, 0), ended(0, 1)], 4, 1.0, 0)
    assert (all_kept["rollout/left_out_share"], all_kept["rollout/left_out_turns"]) == (0.0, 0.0)
    none_kept = rollout_metrics([ended(0, 0, Outcome.FAILED, turns=3)], 4, 1.0, 0)
    assert (none_kept["rollout/left_out_share"], none_kept["rollout/left_out_turns"]) == (1.0, 3.0)


def test_step_above_max_left_out_share_is_refused() -> None:
    check_left_out(BATCH, True, 4 / 9, 0)
    with pytest.raises(EpisodesLeftOutError):
        check_left_out(BATCH, True, 0.4, 0)
    check_left_out([], True, 0.0, 0)


def test_step_that_leaves_out_more_than_one_percent_warns() -> None:
    assert left_out_warning(3, {"rollout/left_out_share": 0.011, "rollout/left_out_turns": 9.0})
    assert not left_out_warning(3, {"rollout/left_out_share": 0.01, "rollout/left_out_turns": 9.0})
    assert not left_out_warning(3, {})


def test_rewards_that_differ_by_rounding_have_no_variance() -> None:
    assert zero_variance([ended(0, 0, reward=0.1 + 0.2), ended(0, 1, reward=0.3)])
    assert not zero_variance([ended(0, 0), ended(0, 1, reward=0.01)])
    assert reward_range([ended(0, 0, reward=0.25), ended(0, 1, reward=1.0)]) == 0.75
