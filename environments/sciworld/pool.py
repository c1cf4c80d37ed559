"""The simulator processes of one environment, shared by all its sessions."""

from __future__ import annotations

import logging
import threading

from environments.cgroup import cpu_cores, memory_limit
from environments.sciworld.simulator import Simulator

log = logging.getLogger(__name__)

EPISODES_PER_PROCESS = 5000
SESSIONS_PER_PROCESS = 1000
MOST_PROCESSES = 8
"""Maximum number of processes on any machine. Each takes 0.55 GB from the start and performs about
400 steps per second.
"""
BYTES_EACH = 1.25e9
"""Memory for each process in a container with a limit. All may have successors at the same time."""


class SimulatorPool:
    """Simulators on demand, one per CPU core up to `MOST_PROCESSES`. All methods are thread-safe.

    A simulator is replaced after a fixed number of episodes. Once its successor is ready, new
    episodes no longer start in the old one, which ends with its last session. Memory leaks of the
    Java virtual machine or the package therefore cannot accumulate.
    """

    def __init__(self, processes: int | None = None, episodes: int = EPISODES_PER_PROCESS) -> None:
        """
        Args:
            processes: Number of simulators that serve at once. None means the number of CPU cores,
                at most `MOST_PROCESSES`, and as many as the container's memory allows.
            episodes: Number of episodes after which a simulator is replaced.
        """
        most = min(cpu_cores(), MOST_PROCESSES, memory_limit() / BYTES_EACH)
        self.processes = processes or max(1, int(most))
        self._episodes = episodes
        self._lock = threading.Lock()
        self._serving: list[Simulator] = []
        self._successors: dict[Simulator, Simulator] = {}

    def start(self) -> None:
        """Start all simulators, so that the first sessions need not wait.

        Raises:
            JavaMissingError, SimulatorError: A simulator cannot be started.
        """
        with self._lock:
            while len(self._serving) < self.processes:
                self._add()

    def assign(self, held: Simulator | None) -> Simulator:
        """Assign a simulator to a new episode and count the session as its user.

        Args:
            held: The simulator that the session used so far, or None. It is released if it changes.

        Raises:
            JavaMissingError, SimulatorError: A simulator cannot be started.
        """
        with self._lock:
            self._replace_old()
            chosen = held if held in self._serving else self._choose()
            if chosen is not held:
                chosen.sessions += 1
            chosen.episodes += 1
        if held is not None and chosen is not held:
            self.release(held)
        return chosen

    def release(self, held: Simulator) -> None:
        """Release a session's simulator. A retired simulator ends with its last session."""
        with self._lock:
            held.sessions -= 1
            over = not held.sessions and held not in self._serving
        if over:
            held.end()

    def end(self) -> None:
        """End all simulators."""
        with self._lock:
            ending = [*self._serving, *self._successors.values()]
            self._serving.clear()
            self._successors.clear()
        for each in ending:
            each.end()

    def _choose(self) -> Simulator:
        least = min(self._serving, key=lambda each: each.sessions, default=None)
        if least is None or (least.sessions and len(self._serving) < self.processes):
            least = self._add()
        return least

    def _add(self) -> Simulator:
        self._serving.append(Simulator())
        log.info("starting a simulator", extra={"simulator": self._serving[-1].pid})
        return self._serving[-1]

    def _replace_old(self) -> None:
        """Replace simulators that have ended or have hosted enough episodes."""
        self._serving = [each for each in self._serving if not each.gone]
        for old, fresh in list(self._successors.items()):
            if old not in self._serving or fresh.gone:
                del self._successors[old]
                if not fresh.gone:
                    self._serving.append(fresh)
        for place, old in enumerate(self._serving):
            if old.episodes < self._episodes:
                continue
            if old not in self._successors:
                self._successors[old] = Simulator()
            elif self._successors[old].ready():
                self._serving[place] = self._successors.pop(old)
                log.info(
                    "replaced a simulator",
                    extra={"old": old.pid, "simulator": self._serving[place].pid},
                )
                if not old.sessions:
                    old.end()
