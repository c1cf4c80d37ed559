"""Demonstrations collected by several processes together and cached on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from environments.environment import World
from tasks.files import write_rows
from tasks.starter.demonstrations import Demonstration, Demonstrator, Exchange

CHUNK = 32
"""Number of demonstrations between two synchronisations of the processes."""
WRITE_SECONDS = 5.0
"""Seconds between two writes of the cache. A killed build loses at most this much work."""


class DemonstrationCache:
    """Demonstrations 0, 1, 2, ... of an environment's oracle, cached on disk.

    Processes joined by torch.distributed share the work in turn.
    """

    def __init__(
        self,
        world: World,
        tasks: Sequence[int],
        seed: int,
        detour_rate: float,
        folder: Path,
        version: int,
    ) -> None:
        """
        Args:
            world: The environment whose oracle demonstrates.
            tasks: Task indices to demonstrate.
            seed: Seed of the task order and the detours.
            detour_rate: Fraction of actions that are detours, in [0, 1].
            version: Increases whenever the same arguments would produce other demonstrations.
        """
        facts = json.dumps([world.name, world.version, list(tasks), seed, detour_rate, version])
        self._file = (
            folder
            / f"demonstrations-{world.name.replace(':', '.')}-{sha256(facts.encode()).hexdigest()[:16]}.jsonl"
        )
        self._demonstrator = Demonstrator(world, tasks, seed, detour_rate)
        self._played: list[Demonstration] | None = None
        self._written = time.monotonic()
        self._on_disk = 0
        self._writes = False

    def first(
        self, count: int, report: Callable[[int, int], None] | None = None
    ) -> list[Demonstration]:
        """Return the first `count` demonstrations. All processes must pass the same `count`.

        Args:
            report: Progress callback. It receives the number available and the number requested.
        """
        from torch import distributed

        joined = distributed.is_initialized()
        rank, size = (distributed.get_rank(), distributed.get_world_size()) if joined else (0, 1)
        self._writes = rank == 0
        if self._played is None:
            box = [self._read() if rank == 0 else []]
            if joined:
                distributed.broadcast_object_list(box)
            self._played = box[0]
        while (count_done := len(self._played)) < count:
            numbers = range(count_done, min(count_done + CHUNK, count))
            local = {
                number: self._demonstrator.play(number)
                for number in numbers
                if number % size == rank
            }
            shares = [local]
            if joined:
                shares = [{} for _ in range(size)]
                distributed.all_gather_object(shares, local)
            gathered = {number: each for share in shares for number, each in share.items()}
            self._played += [gathered[number] for number in numbers]
            if rank == 0 and time.monotonic() - self._written > WRITE_SECONDS:
                self._write(self._played)
            if report is not None:
                report(len(self._played), count)
        return self._played[:count]

    def close(self) -> None:
        """Release the environment and save the demonstrations collected so far."""
        self._demonstrator.close()
        if self._writes and self._played is not None and len(self._played) > self._on_disk:
            self._write(self._played)

    def _read(self) -> list[Demonstration]:
        """Read the cached demonstrations up to the first invalid line."""
        found: list[Demonstration] = []
        try:
            for line in self._file.read_text(encoding="utf-8").splitlines():
                stored = json.loads(line)
                exchanges = tuple(Exchange(**each) for each in stored["exchanges"])
                found.append(Demonstration(stored["task"], stored["first_observation"], exchanges))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        self._on_disk = len(found)
        return found

    def _write(self, demonstrations: list[Demonstration]) -> None:
        """Replace the cache file atomically.

        Concurrent builds are safe, because their files start with the same demonstrations.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_rows(self._file, map(asdict, demonstrations))
        self._written, self._on_disk = time.monotonic(), len(demonstrations)
