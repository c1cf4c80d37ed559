"""Wall time of a run, broken down by activity."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

# The purpose of a run. All other time is orchestration.
WORK = ("starter policy", "rollouts", "updates", "weight sync", "checkpoints", "evaluation")


@dataclass(slots=True)
class TimeBreakdown:
    """Seconds per activity since the start of the process.

    Attributes:
        began: Start of the process, in seconds since 1970. Imports therefore count.
        parts: Maps the name of an activity to its seconds.
    """

    began: float = field(default_factory=lambda: psutil.Process().create_time())
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to an activity."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block as time of an activity."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def table(self) -> str:
        """Format the activities and their shares, work first, then orchestration.

        Unmeasured time is in "other". The last line gives the share of orchestration in total time.
        """
        total = time.time() - self.began
        work = {name: self.parts[name] for name in WORK if name in self.parts}
        orchestration = {name: seconds for name, seconds in self.parts.items() if name not in WORK}
        orchestration["other"] = max(0.0, total - sum(self.parts.values()))
        rows = [*work.items(), *sorted(orchestration.items(), key=lambda row: -row[1])]
        width = max(len(name) for name, _ in rows)
        lines = [
            f"  {name:<{width}}  {seconds:7.1f} s  {seconds / total:5.1%}" for name, seconds in rows
        ]
        spent = sum(orchestration.values())
        excluded = f" (total without {', '.join(work)})" if work else ""
        lines.append(f"Orchestration{excluded}: {spent:.1f} of {total:.1f} s = {spent / total:.1%}")
        return "\n".join(lines)
