"""Tests of the progress bar's episode counts over all trainer processes."""

from __future__ import annotations

from pathlib import Path

from tasks.training.episode_counts import EpisodeCounts


def test_counts_cover_all_processes(tmp_path: Path) -> None:
    first, second = (EpisodeCounts(tmp_path, rank, 2) for rank in (0, 1))
    assert first.add("step 1", 3, 32) == (3, 64)  # the second process has not reported yet
    assert second.add("step 1", 10, 31) == (13, 63)
    assert first.add("step 1", 32, 32) == (42, 63)


def test_episodes_of_another_batch_are_not_counted(tmp_path: Path) -> None:
    first, second = (EpisodeCounts(tmp_path, rank, 2) for rank in (0, 1))
    second.add("step 1", 32, 32)
    assert first.add("step 2", 1, 32) == (1, 64)


def test_single_process_counts_its_own_episodes(tmp_path: Path) -> None:
    assert EpisodeCounts(tmp_path, 0, 1).add("evaluation 0", 5, 8) == (5, 8)
