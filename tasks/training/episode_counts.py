"""How many episodes of a batch all processes of the trainer have finished: each notes its own share in a file, and reads the others'."""

from __future__ import annotations

import json
import os
from pathlib import Path


class EpisodeCounts:
    """One process's view of everybody's counts."""

    def __init__(self, folder: Path, rank: int, processes: int) -> None:
        """
        Args:
            folder: The same for all processes, on a disk that they share.
            rank: This process's number, from 0.
            processes: How many there are.
        """
        self._folder, self._rank, self._processes = folder, rank, processes
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, batch: str, finished: int, total: int) -> tuple[int, int]:
        """Notes this process's counts of a batch.

        Args:
            batch: What the episodes are of; the same in all processes, another for each batch.
            finished: Episodes of its share that are finished.
            total: Episodes of its share.

        Returns:
            Episodes finished and in all, of everybody. A process that has not said anything of this batch is taken to have an equal share.
        """
        self._write({"batch": batch, "finished": finished, "total": total})
        counts = [self._read(rank, batch) or (0, total) for rank in range(self._processes) if rank != self._rank]
        return finished + sum(each for each, _ in counts), total + sum(all_of for _, all_of in counts)

    def _file(self, rank: int) -> Path:
        return self._folder / f"episodes-of-rank-{rank}.json"

    def _write(self, counts: dict[str, object]) -> None:
        unfinished = self._file(self._rank).with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(counts), encoding="utf-8")
        unfinished.replace(self._file(self._rank))

    def _read(self, rank: int, batch: str) -> tuple[int, int] | None:
        try:
            counts = json.loads(self._file(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return (int(counts["finished"]), int(counts["total"])) if counts["batch"] == batch else None
