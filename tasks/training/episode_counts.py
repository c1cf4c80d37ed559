"""Episode progress across all trainer ranks, exchanged through one file per rank."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.files import read_json, replace_file


class EpisodeCounts:
    """The episode counts of all ranks, read and written by one of them."""

    def __init__(self, folder: Path, rank: int, processes: int) -> None:
        """
        Args:
            folder: The same folder on every rank, on a shared disk.
            rank: Rank of this process, from 0.
            processes: Number of ranks.
        """
        self._folder, self._rank, self._processes = folder, rank, processes
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, batch: str, finished: int, total: int) -> tuple[int, int]:
        """Write this rank's counts for a batch and return the totals.

        Args:
            batch: Name of the batch: the same on all ranks, different for each batch.
            finished: Number of finished episodes in this rank's share.
            total: Number of episodes in this rank's share.

        Returns:
            Finished episodes and all episodes, over all ranks. A rank without counts for this batch
            is assumed to have an equal share and no finished episodes.
        """
        own = {"batch": batch, "finished": finished, "total": total}
        replace_file(self._file(self._rank), json.dumps(own))
        counts = [
            self._read(rank, batch) or (0, total)
            for rank in range(self._processes)
            if rank != self._rank
        ]
        return finished + sum(each for each, _ in counts), total + sum(
            all_of for _, all_of in counts
        )

    def _file(self, rank: int) -> Path:
        return self._folder / f"episodes-of-rank-{rank}.json"

    def _read(self, rank: int, batch: str) -> tuple[int, int] | None:
        counts = read_json(self._file(rank))
        return (counts["finished"], counts["total"]) if counts.get("batch") == batch else None
