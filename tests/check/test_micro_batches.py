"""Tests of the tensors made from trajectories, and of dealing trajectories into micro-batches."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training.micro_batches import PackedRows, PaddedRows, deal
from tasks.training.packing import pack
from tasks.training.row_tensors import pad_trajectories


def trajectory(prompt: list[int], *turns: tuple[list[int], list[int]]) -> Trajectory:
    made = Trajectory(
        "textcraft", 0, 0, 0, 0, 8, 0, "vllm", prompt=prompt, outcome=Outcome.FINISHED
    )
    made.turns = [
        Turn(tokens, [-0.5] * len(tokens), "look", observation_tokens=observation)
        for tokens, observation in turns
    ]
    return made


def test_loss_covers_policy_tokens_only_and_padding_is_masked() -> None:
    long = trajectory([1, 2, 3], ([4, 5], [6, 7]), ([8], []))
    short = trajectory([9], ([10], []))
    tensors = pad_trajectories([long, short], pad_token=0)
    assert tensors["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 9, 10, 0, 0, 0, 0]]
    assert tensors["attention_mask"].tolist() == [[1] * 8, [0, 0, 1, 1, 0, 0, 0, 0]]
    assert tensors["completion_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert tensors["tool_mask"].tolist() == [[1, 1, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert tensors["sampling_per_token_logps"].tolist() == [
        [-0.5, -0.5, 0, 0, -0.5],
        [-0.5, 0, 0, 0, 0],
    ]


def test_a_micro_batch_without_trajectories_is_one_masked_row() -> None:
    tensors = pad_trajectories([], pad_token=7)
    assert tensors["input_ids"].shape == (1, 2)
    assert tensors["tool_mask"].sum() == 0


def test_turn_ends_are_the_last_policy_tokens() -> None:
    made = trajectory([1], ([4, 5], [6, 7]), ([8], [9]), ([3, 3, 3], []))
    assert made.turn_ends == [1, 4, 8]
    assert [made.completion[end] for end in made.turn_ends] == [5, 8, 3]
    assert [made.policy_mask[end] for end in made.turn_ends] == [1, 1, 1]


@given(st.lists(st.integers(0, 2000), max_size=60), st.integers(1, 9))
def test_every_trajectory_is_in_exactly_one_micro_batch(lengths: list[int], parts: int) -> None:
    dealt = deal(PaddedRows(lengths), parts)
    assert len(dealt) == parts
    assert sorted(i for part in dealt for i in part) == list(range(len(lengths)))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=7), st.integers(1, 4))
def test_largest_micro_batch_is_minimal(lengths: list[int], parts: int) -> None:
    def cost(part: list[int]) -> int:
        return len(part) * max((lengths[i] for i in part), default=0)

    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])

    def best(start: int, left: int) -> int:
        if start == len(order):
            return 0
        if left == 0:
            return 10**9
        return min(
            max(cost(order[start:end]), best(end, left - 1))
            for end in range(start + 1, len(order) + 1)
        )

    assert max(cost(part) for part in deal(PaddedRows(lengths), parts)) == best(0, parts)


def test_ragged_trajectories_waste_at_most_a_quarter() -> None:
    lengths = [100] * 96 + [1000] * 32
    padded = sum(len(part) * max(lengths[i] for i in part) for part in deal(PaddedRows(lengths), 4))
    assert padded <= 1.25 * sum(lengths)
    assert len(lengths) * max(lengths) > 3 * padded


ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12)


@given(ROWS, st.integers(1, 20), st.integers(0, 2), st.booleans())
def test_packed_micro_batches_hold_every_row_once_within_the_budget(
    rows: list[list[int]], budget: int, more: int, share: bool
) -> None:
    packed = PackedRows(rows, share=share)
    parts = packed.within(budget)
    dealt = deal(packed, len(parts) + more, budget)
    assert len(dealt) == len(parts) + more
    for split in (parts, dealt):
        assert sorted(i for part in split for i in part) == list(range(len(rows)))
        sizes = [packed_size([rows[i] for i in part], share=share) for part in split]
        assert all(
            size <= budget or len(part) == 1 for size, part in zip(sizes, split, strict=True)
        )


def test_packed_rows_fill_micro_batches_that_have_room() -> None:
    lengths = (3, 3, 2, 2)
    packed = PackedRows([[number] * length for number, length in enumerate(lengths)], share=True)
    assert sorted(map(sorted, packed.within(5))) == [[0, 2], [1, 3]]


def test_equal_packed_rows_are_dealt_evenly_below_the_budget() -> None:
    packed = PackedRows([[number] * 5 for number in range(4)], share=True)
    assert sorted(deal(packed, 4, budget=20)) == [[0], [1], [2], [3]]


def test_packed_rows_stay_with_those_that_share_most_of_their_tokens() -> None:
    rows = [[0] * 3, [5] * 7 + [6], [5] * 6 + [7]]  # the last one also fits beside the first one
    assert sorted(map(sorted, PackedRows(rows, share=True).within(10))) == [[0], [1, 2]]


def packed_size(rows: list[list[int]], *, share: bool) -> int:
    longest = max(map(len, rows), default=0)
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    ids = [row + [0] * (longest - len(row)) for row in rows]
    return pack(torch.tensor(ids), torch.tensor(mask), share=share).ids.numel() if rows else 0
