"""Episodes of an endpoint on disk, as trajectory files.

FOLDER/settings.json             the policy; a folder holds the episodes of one policy
FOLDER/episode-000000.parquet    one episode
FOLDER/episodes.jsonl            one line per episode: id, task, reward, sampling of each call
FOLDER/starts.jsonl              one line per endpoint that recorded into the folder: its start
FOLDER/owner.lock                lock held by the endpoint
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.files import append_row, read_rows
from tasks.rollout.resumable_writer import check_settings
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories


class Recording:
    """Writes ended episodes. An episode is on disk when `add` returns."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Continue the recording in a folder, or begin it.

        Args:
            folder: Folder of the episodes.
            settings: Plain data that identifies the policy.

        Raises:
            DifferentCollectionError: The folder holds the episodes of another policy.
        """
        folder.mkdir(parents=True, exist_ok=True)
        check_settings(folder / "settings.json", settings)
        self._folder = folder
        self._next = max(
            (int(path.stem.rpartition("-")[2]) + 1 for path in folder.glob("episode-*.parquet")),
            default=0,
        )

    def begin(self) -> int:
        """Record the start of an endpoint, and return the number of earlier starts."""
        file = self._folder / "starts.jsonl"
        earlier = len(read_rows(file))
        append_row(file, {"time": time.time()})
        return earlier

    def add(self, episode: Trajectory, facts: Mapping[str, Any]) -> None:
        """Write an episode, and a line with further facts about it.

        Its group is the number of the episode. If one of the writes fails, the same call again
        replaces both.
        """
        episode.group = number = self._next
        write_trajectories(self._folder / f"episode-{number:06d}.parquet", [episode])
        append_row(self._folder / "episodes.jsonl", {"episode": number, **facts})
        self._next += 1
