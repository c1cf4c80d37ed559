"""Demonstrations played by several processes together, and kept on disk: what an expert has shown once it need not show again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from environments.environment import World
from tasks.starter.demonstrations import Demonstration, Demonstrator, Exchange

CHUNK = 32
"""Demonstrations between two meetings of the processes."""
WRITE_SECONDS = 5.0
"""Time between two writings of what was played; a build that is killed loses no more."""


class DemonstrationCache:
    """Demonstrations 0, 1, 2, ... of a world's oracle; the processes that torch.distributed joins, if any, play them in turn."""

    def __init__(self, world: World, tasks: Sequence[int], seed: int, detour_rate: float, folder: Path, version: int) -> None:
        """
        Args:
            world: Whose oracle demonstrates.
            tasks: What is demonstrated.
            seed: Of the order and the detours.
            detour_rate: Share of the actions that are detours.
            folder: Where demonstrations are kept.
            version: Changes whenever the same arguments would give other demonstrations.
        """
        facts = json.dumps([world.name, world.version, list(tasks), seed, detour_rate, version])
        self._file = folder / f"demonstrations-{world.name.replace(':', '.')}-{sha256(facts.encode()).hexdigest()[:16]}.jsonl"
        self._demonstrator = Demonstrator(world, tasks, seed, detour_rate)
        self._played: list[Demonstration] | None = None
        self._written = time.monotonic()
        self._on_disk = 0
        self._writes = False

    def first(self, count: int, report: Callable[[int, int], None] | None = None) -> list[Demonstration]:
        """The first `count` demonstrations; every process must ask for the same.

        Args:
            count: How many.
            report: Told how many of how many are there.
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
        while (have := len(self._played)) < count:
            numbers = range(have, min(have + CHUNK, count))
            mine = {number: self._demonstrator.play(number) for number in numbers if number % size == rank}
            shares = [mine]
            if joined:
                shares = [{} for _ in range(size)]
                distributed.all_gather_object(shares, mine)
            together = {number: each for share in shares for number, each in share.items()}
            self._played += [together[number] for number in numbers]
            if rank == 0 and time.monotonic() - self._written > WRITE_SECONDS:
                self._write(self._played)
            if report is not None:
                report(len(self._played), count)
        return self._played[:count]

    def close(self) -> None:
        """Frees the environment, and keeps what was played."""
        self._demonstrator.close()
        if self._writes and self._played is not None and len(self._played) > self._on_disk:
            self._write(self._played)

    def _read(self) -> list[Demonstration]:
        """What is on disk, up to the first line that cannot be read."""
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

    def _write(self, some: list[Demonstration]) -> None:
        """Replaces the file: of several builds at once each writes the same beginning."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}.tmp")
        unfinished.write_text("".join(map(_line, some)), encoding="utf-8")
        unfinished.replace(self._file)
        self._written, self._on_disk = time.monotonic(), len(some)


def _line(demonstration: Demonstration) -> str:
    return json.dumps(asdict(demonstration)) + "\n"
